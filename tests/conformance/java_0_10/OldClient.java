import java.util.Collections;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own client of 0.10.2: writes ten records with the codec that is named, reads the topic as
 * a member of a group until it has as many as are named, commits, and prints a line for each.
 */
public final class OldClient {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String codec = arguments[2];
        int expected = Integer.parseInt(arguments[3]);
        String type = "org.apache.kafka.common.serialization.String";
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("acks", "all");
        settings.put("linger.ms", "50");
        settings.put("key.serializer", type + "Serializer");
        settings.put("value.serializer", type + "Serializer");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < 10; number++) {
                long time = 1_700_000_000_000L + number;
                sent.add(producer.send(new ProducerRecord<>(topic, 0, time, "key", "value " + number)));
            }
            for (Future<RecordMetadata> each : sent) {
                RecordMetadata written = each.get();
                System.out.println("written " + written.offset() + " " + written.timestamp());
            }
        }
        settings.put("key.deserializer", type + "Deserializer");
        settings.put("value.deserializer", type + "Deserializer");
        settings.put("group.id", "group-" + topic);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(Collections.singleton(topic));
            int read = 0;
            while (read < expected) {
                for (ConsumerRecord<String, String> each : consumer.poll(1000)) {
                    System.out.println("read " + each.offset() + " " + each.timestamp() + " " + each.timestampType()
                            + " " + each.key() + " " + each.value());
                    read++;
                }
            }
            consumer.commitSync();
            System.out.println("committed " + consumer.committed(partition).offset());
            Map<TopicPartition, OffsetAndTimestamp> found =
                    consumer.offsetsForTimes(Collections.singletonMap(partition, 1_700_000_000_005L));
            System.out.println("found " + found.get(partition).offset());
        }
    }
}
