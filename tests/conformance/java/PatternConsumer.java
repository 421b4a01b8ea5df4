import java.time.Duration;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a consumer group that lets the coordinator look for its topics.
 *
 * <p>Arguments: bootstrap, group, pattern, records, instance id. It prints TOPIC VALUE for each
 * record, commits, and says "left". If the coordinator refuses the pattern it says "refused".
 */
public final class PatternConsumer {
  public static void main(String[] arguments) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", arguments[0]);
    properties.put("group.id", arguments[1]);
    properties.put("group.instance.id", arguments[4]);
    properties.put("group.protocol", "consumer");
    properties.put("group.remote.assignor", "range");
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    int wanted = Integer.parseInt(arguments[3]);
    Set<String> seen = new TreeSet<>();
    long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(new SubscriptionPattern(arguments[2]));
      while (seen.size() < wanted && System.nanoTime() < deadline) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
          seen.add(record.topic() + " " + record.value());
        }
      }
      consumer.commitSync();
    } catch (InvalidRegularExpression error) {
      System.out.println("refused");
      return;
    }
    seen.forEach(System.out::println);
    System.out.println("left");
  }
}
