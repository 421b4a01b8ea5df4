import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One member of a group after the other, which does what it is told on stdin (java.py) and answers.
 *
 * <p>Words of a line are parted by tabs. "open BOOTSTRAP GROUP TOPIC PROTOCOL SESSION_MS
 * HEARTBEAT_MS" makes a member: PROTOCOL is consumer (KIP-848), or else the assignor of the classic
 * protocol. "poll MS" is answered with "records JSON", "commit TOPIC PARTITION OFFSET" and "close"
 * with "done"; all of them may be answered with "failed TEXT". Before an answer come callbacks,
 * "assigned", "revoked" or "lost JSON": each waits for a line, so that nobody hears of it before it
 * is noted. The end of stdin ends the process at once, and the group is told nothing.
 */
public final class GroupMember implements ConsumerRebalanceListener {
  private static final PrintStream OUT =
      new PrintStream(System.out, true, StandardCharsets.UTF_8);
  private static final BufferedReader IN =
      new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

  private final KafkaConsumer<byte[], byte[]> consumer;

  private GroupMember(String[] words) {
    Properties properties = new Properties();
    // How to get in; not an argument, since others can see those.
    String security = System.getenv("KRAFTPY_CONSISTENCY_JAVA");
    if (security != null) {
      try {
        properties.load(new StringReader(security));
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
    properties.put("bootstrap.servers", words[1]);
    properties.put("group.id", words[2]);
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    properties.put("reconnect.backoff.max.ms", "200");
    if (words[4].equals("consumer")) {
      properties.put("group.protocol", "consumer");
    } else {
      properties.put("session.timeout.ms", words[5]);
      properties.put("heartbeat.interval.ms", words[6]);
      properties.put(
          "partition.assignment.strategy",
          words[4].equals("range")
              ? "org.apache.kafka.clients.consumer.RangeAssignor"
              : "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
    }
    consumer =
        new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    consumer.subscribe(List.of(words[3]), this);
  }

  public static void main(String[] arguments) {
    System.setOut(System.err); // whatever is logged is no answer
    GroupMember member = null;
    while (true) {
      String[] words = read().split("\t");
      try {
        if (words[0].equals("open")) {
          member = new GroupMember(words);
          OUT.println("done");
        } else {
          OUT.println(member.answer(words));
        }
      } catch (KafkaException error) {
        OUT.println("failed\t" + error.toString().replaceAll("\\s", " "));
      }
    }
  }

  private static String read() {
    try {
      String line = IN.readLine();
      if (line == null) {
        Runtime.getRuntime().halt(1);
      }
      return line;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private String answer(String[] words) {
    switch (words[0]) {
      case "poll":
        ConsumerRecords<byte[], byte[]> records =
            consumer.poll(Duration.ofMillis(Long.parseLong(words[1])));
        return "records\t"
            + records.partitions().stream()
                .map(each -> quoted(each) + ":" + offsets(records, each))
                .collect(Collectors.joining(",", "{", "}"));
      case "commit":
        TopicPartition partition = new TopicPartition(words[1], Integer.parseInt(words[2]));
        OffsetAndMetadata offset = new OffsetAndMetadata(Long.parseLong(words[3]));
        consumer.commitSync(Map.of(partition, offset), Duration.ofSeconds(5));
        return "done";
      default:
        consumer.close();
        return "done";
    }
  }

  private static String offsets(ConsumerRecords<byte[], byte[]> records, TopicPartition partition) {
    return records.records(partition).stream().map(each -> each.offset()).toList().toString();
  }

  @Override
  public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
    tell("assigned", partitions);
  }

  @Override
  public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
    tell("revoked", partitions);
  }

  @Override
  public void onPartitionsLost(Collection<TopicPartition> partitions) {
    tell("lost", partitions);
  }

  private void tell(String what, Collection<TopicPartition> partitions) {
    String keys = partitions.stream().map(GroupMember::quoted).collect(Collectors.joining(","));
    OUT.printf(
        "%s\t{\"keys\":[%s],\"epoch\":%d,\"member\":\"%s\"}%n",
        what, keys, consumer.groupMetadata().generationId(), consumer.groupMetadata().memberId());
    read();
  }

  /** A topic's name has no character that JSON would escape. */
  private static String quoted(TopicPartition partition) {
    return "\"" + partition + "\"";
  }
}
