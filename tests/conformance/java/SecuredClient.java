import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client that has to log in, as tests/conformance/secured_clients.py asks for it: each line
 * of stdin is a command, each line of stdout an answer.
 */
public final class SecuredClient {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Duration POLL = Duration.ofMillis(100);

  private SecuredClient() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        ArrayNode read = answer.putArray("read");
        round(JSON.readTree(line), read);
        answer.put("ok", true);
      } catch (ExecutionException error) {
        answer.put("error", error.getCause().toString());
      } catch (KafkaException error) {
        answer.put("error", error.toString());
      }
      System.out.println(answer);
    }
    System.exit(0);
  }

  /** Records to a topic, and out of it by a consumer of a group. */
  private static void round(JsonNode command, ArrayNode read)
      throws ExecutionException, InterruptedException {
    String topic = command.get("topic").asText();
    Properties properties = new Properties();
    command
        .get("settings")
        .fields()
        .forEachRemaining(each -> properties.put(each.getKey(), each.getValue().asText()));
    properties.put("bootstrap.servers", command.get("bootstrap").asText());
    properties.put("group.id", topic);
    properties.put("auto.offset.reset", "earliest");
    try (KafkaProducer<String, String> producer =
        new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
      for (JsonNode value : command.get("values")) {
        producer.send(new ProducerRecord<>(topic, value.asText())).get();
      }
    }
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
      consumer.subscribe(List.of(topic));
      while (read.size() < command.get("values").size()) {
        for (ConsumerRecord<String, String> each : consumer.poll(POLL)) {
          read.add(each.value());
        }
      }
    }
  }
}
