import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a group that reads a topic until its stdin ends, and leaves.
 *
 * <p>Arguments: bootstrap, topic, group, session timeout, heartbeat interval. It prints "owned
 * PARTITION..." whenever that changes, and "had NANOSECONDS PARTITION OFFSET KEY" for each record.
 */
public final class GroupMember {
  public static void main(String[] arguments) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", arguments[0]);
    properties.put("group.id", arguments[2]);
    properties.put("session.timeout.ms", arguments[3]);
    properties.put("heartbeat.interval.ms", arguments[4]);
    properties.put(
        "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
    properties.put("auto.offset.reset", "earliest");
    properties.put("auto.commit.interval.ms", "50");
    properties.put("fetch.max.wait.ms", "50");
    Thread end =
        new Thread(
            () -> {
              try {
                while (System.in.read() >= 0) {}
              } catch (java.io.IOException ignored) {
                // It has ended, too.
              }
              ended = true;
            });
    end.setDaemon(true);
    end.start();
    Set<Integer> owned = Set.of();
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of(arguments[1]));
      while (!ended) {
        StringBuilder text = new StringBuilder();
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
          text.append("had " + System.nanoTime() + " " + record.partition());
          text.append(" " + record.offset() + " " + record.key() + "\n");
        }
        Set<Integer> now = new TreeSet<>();
        for (TopicPartition partition : consumer.assignment()) {
          now.add(partition.partition());
        }
        if (!now.equals(owned)) {
          owned = now;
          text.append("owned");
          owned.forEach(partition -> text.append(" " + partition));
          text.append("\n");
        }
        System.out.print(text);
        System.out.flush();
      }
    }
  }

  private static volatile boolean ended;
}
