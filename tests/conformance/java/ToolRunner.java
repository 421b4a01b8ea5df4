import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one JVM, as tests/conformance/tool_runner.py
 * asks for them.
 *
 * <p>Each line of stdin is a main class and its arguments, separated by the character 1. The answer
 * is the exit code, then what went to stdout and to stderr, each behind its length; numbers are four
 * bytes. The end of stdin ends the process.
 */
public final class ToolRunner {
  private static volatile CompletableFuture<Integer> ended;

  private ToolRunner() {}

  public static void main(String[] args) throws Exception {
    DataOutputStream answers = new DataOutputStream(System.out);
    Exit.setExitProcedure(ToolRunner::exit);
    Exit.setHaltProcedure(ToolRunner::exit);
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      run(line.split("\u0001", -1), answers);
    }
    System.exit(0);
  }

  /** A tool that exits goes no further, whatever it would catch. */
  private static void exit(int code, String message) {
    if (message != null) {
      System.err.println(message);
    }
    ended.complete(code);
    while (true) {
      LockSupport.park();
    }
  }

  private static void run(String[] command, DataOutputStream answers) throws Exception {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    ByteArrayOutputStream err = new ByteArrayOutputStream();
    PrintStream realErr = System.err;
    System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
    System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
    CompletableFuture<Integer> result = new CompletableFuture<>();
    ended = result;
    Thread thread = new Thread(() -> result.complete(call(command)));
    thread.setDaemon(true);
    thread.start();
    int code = result.get();
    System.out.flush();
    System.err.flush();
    System.setErr(realErr);
    answers.writeInt(code);
    write(answers, out);
    write(answers, err);
    answers.flush();
  }

  private static int call(String[] command) {
    try {
      Method main = Class.forName(command[0]).getMethod("main", String[].class);
      main.invoke(null, (Object) Arrays.copyOfRange(command, 1, command.length));
      return 0;
    } catch (InvocationTargetException error) {
      error.getCause().printStackTrace();
      return 1;
    } catch (ReflectiveOperationException error) {
      error.printStackTrace();
      return 2;
    }
  }

  private static void write(DataOutputStream answers, ByteArrayOutputStream text)
      throws IOException {
    answers.writeInt(text.size());
    text.writeTo(answers);
  }
}
