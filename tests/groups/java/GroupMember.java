import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a consumer group, a thread and a KafkaConsumer for each: they note all that they do.
 *
 * <p>Arguments are KEY=VALUE, as tests/groups/jvm.py gives them. protocol is consumer (KIP-848), or
 * else the classic protocol with the assignor of that name: range or cooperative-sticky. Each member
 * writes its history to FOLDER/NAME.jsonl: JSON lines, one write(2) each, of the shapes that
 * tests/groups/history.py describes. The line "leave" on stdin has all of them leave the group; the
 * end of stdin ends the process.
 */
public final class GroupMember implements Runnable, ConsumerRebalanceListener {
  private static volatile boolean leaving = false;

  private final Map<String, String> options;
  private final String name;
  private final FileOutputStream file;
  private final KafkaConsumer<byte[], byte[]> consumer;
  private final TreeSet<Integer> owned = new TreeSet<>();
  private int commits = 0;

  private GroupMember(Map<String, String> options, String name) throws IOException {
    this.options = options;
    this.name = name;
    this.file = new FileOutputStream(options.get("folder") + "/" + name + ".jsonl", true);
    note("started", "\"client\":\"java\",\"pid\":" + ProcessHandle.current().pid());
    this.consumer =
        new KafkaConsumer<>(configuration(), new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (String argument : arguments) {
      String[] parts = argument.split("=", 2);
      options.put(parts[0], parts[1]);
    }
    List<Thread> threads = new ArrayList<>();
    for (String name : options.get("members").split(",")) {
      threads.add(new Thread(new GroupMember(options, name), name));
    }
    // A member that fails must not be mistaken for one that left.
    Thread.setDefaultUncaughtExceptionHandler(
        (thread, error) -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
        });
    threads.forEach(Thread::start);
    Thread listener = new Thread(GroupMember::listen, "stdin");
    listener.setDaemon(true);
    listener.start();
  }

  private static void listen() {
    try {
      BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
      for (String line = input.readLine(); line != null; line = input.readLine()) {
        leaving |= line.equals("leave");
      }
    } catch (IOException error) {
      error.printStackTrace();
    }
    Runtime.getRuntime().halt(1);
  }

  private Properties configuration() {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", options.get("bootstrap"));
    properties.put("group.id", options.get("group"));
    properties.put("client.id", name);
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    properties.put("reconnect.backoff.max.ms", "200");
    String protocol = options.get("protocol");
    if (protocol.equals("consumer")) {
      properties.put("group.protocol", "consumer");
    } else {
      properties.put("session.timeout.ms", options.get("session_timeout_ms"));
      properties.put("heartbeat.interval.ms", options.get("heartbeat_interval_ms"));
      properties.put(
          "partition.assignment.strategy",
          protocol.equals("range")
              ? "org.apache.kafka.clients.consumer.RangeAssignor"
              : "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    }
    return properties;
  }

  @Override
  public void run() {
    Duration timeout = Duration.ofMillis(Long.parseLong(options.get("poll_ms")));
    consumer.subscribe(List.of(options.get("topic")), this);
    while (!leaving) {
      long startedAt = System.nanoTime();
      try {
        process(consumer.poll(timeout));
      } catch (KafkaException error) {
        note("failed", "\"error\":" + quoted(error.toString()));
      }
      // A batch is what came within the time, not whatever there was at once.
      pause(timeout.toNanos() - (System.nanoTime() - startedAt));
    }
    consumer.close();
    note("left", "");
  }

  private static void pause(long nanos) {
    try {
      Thread.sleep(Math.max(0, nanos) / 1_000_000);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private void process(ConsumerRecords<byte[], byte[]> records) {
    Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
    for (TopicPartition partition : records.partitions()) {
      List<ConsumerRecord<byte[], byte[]>> some = records.records(partition);
      long end = some.get(some.size() - 1).offset() + 1;
      long first = some.get(0).offset();
      note(
          "processed",
          "\"partition\":" + partition.partition() + ",\"first\":" + first + ",\"end\":" + end);
      ends.put(partition, new OffsetAndMetadata(end));
    }
    if (ends.isEmpty()) {
      return;
    }
    int number = ++commits;
    Map<Integer, Long> offsets = new TreeMap<>();
    ends.forEach((partition, end) -> offsets.put(partition.partition(), end.offset()));
    String text =
        offsets.entrySet().stream()
            .map(each -> "\"" + each.getKey() + "\":" + each.getValue())
            .collect(Collectors.joining(","));
    note("committing", "\"commit\":" + number + ",\"offsets\":{" + text + "}");
    try {
      consumer.commitSync(ends, Duration.ofSeconds(20));
      note("committed", "\"commit\":" + number);
    } catch (KafkaException error) {
      note("refused", "\"commit\":" + number + ",\"error\":" + quoted(error.toString()));
    }
  }

  @Override
  public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
    partitions.forEach(partition -> owned.add(partition.partition()));
    note(
        "assigned",
        "\"partitions\":" + indexes(partitions) + ",\"owned\":" + owned
            + ",\"epoch\":" + consumer.groupMetadata().generationId()
            + ",\"member_id\":" + quoted(consumer.groupMetadata().memberId()));
  }

  @Override
  public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
    giveUp("revoked", partitions);
  }

  @Override
  public void onPartitionsLost(Collection<TopicPartition> partitions) {
    giveUp("lost", partitions);
  }

  private void giveUp(String event, Collection<TopicPartition> partitions) {
    partitions.forEach(partition -> owned.remove(partition.partition()));
    note(event, "\"partitions\":" + indexes(partitions));
  }

  private static String indexes(Collection<TopicPartition> partitions) {
    return partitions.stream().map(TopicPartition::partition).sorted().toList().toString();
  }

  private static String quoted(String text) {
    return "\"" + text.replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"";
  }

  /** System.nanoTime is CLOCK_MONOTONIC here: the same clock in all processes. */
  private void note(String event, String fields) {
    String line =
        String.format(
            Locale.ROOT,
            "{\"at\":%.6f,\"group\":%s,\"member\":%s,\"event\":\"%s\"%s}\n",
            System.nanoTime() / 1e9,
            quoted(options.get("group")),
            quoted(name),
            event,
            fields.isEmpty() ? "" : "," + fields);
    try {
      file.write(line.getBytes(StandardCharsets.UTF_8));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
