import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions of the Java client, as tests/conformance/transactional_clients.py asks for them: each
 * line of stdin is a command, each line of stdout an answer. The argument is the bootstrap address.
 */
public final class TransactionalClient {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Duration POLL = Duration.ofMillis(100);

  private final String bootstrap;
  private final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();

  private TransactionalClient(String bootstrap) {
    this.bootstrap = bootstrap;
  }

  public static void main(String[] arguments) throws Exception {
    TransactionalClient client = new TransactionalClient(arguments[0]);
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      ObjectNode answer = JSON.createObjectNode();
      try {
        client.carryOut(JSON.readTree(line));
        answer.put("ok", true);
      } catch (ExecutionException | CompletionException error) {
        error.getCause().printStackTrace();
        answer.put("error", error.getCause().getClass().getSimpleName());
      } catch (KafkaException error) {
        answer.put("error", error.getClass().getSimpleName());
      }
      say(answer);
    }
    System.exit(0);
  }

  private static synchronized void say(ObjectNode answer) {
    System.out.println(answer);
  }

  private void carryOut(JsonNode command) throws ExecutionException, InterruptedException {
    String name = command.path("name").asText();
    KafkaProducer<String, String> producer = producers.get(name);
    switch (command.get("do").asText()) {
      case "open" -> {
        producers.put(name, open(command.get("id").asText(), command.get("timeout_ms").asInt()));
        producers.get(name).initTransactions();
      }
      case "begin" -> producer.beginTransaction();
      case "send" -> send(producer, command);
      case "commit" -> producer.commitTransaction();
      case "abort" -> producer.abortTransaction();
      case "close" -> producers.remove(name).close(Duration.ZERO);
      case "transform" -> transform(command);
      default -> throw new IllegalArgumentException(command.toString());
    }
  }

  private KafkaProducer<String, String> open(String id, int timeoutMs) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    properties.put("transactional.id", id);
    properties.put("transaction.timeout.ms", timeoutMs);
    return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
  }

  private static void send(KafkaProducer<String, String> producer, JsonNode command)
      throws ExecutionException, InterruptedException {
    List<Future<RecordMetadata>> sent = new ArrayList<>();
    for (JsonNode each : command.get("partitions")) {
      String value = command.get("value").asText();
      sent.add(
          producer.send(
              new ProducerRecord<>(command.get("topic").asText(), each.asInt(), null, value)));
    }
    producer.flush();
    for (Future<RecordMetadata> each : sent) {
      each.get();
    }
  }

  /** Members of one group, each with a transactional id, until all of the source is in the target. */
  private void transform(JsonNode command) {
    List<CompletableFuture<Void>> members = new ArrayList<>();
    for (int number = 0; number < command.get("members").asInt(); number++) {
      int member = number;
      members.add(CompletableFuture.runAsync(() -> new Member(command, member).run()));
    }
    CompletableFuture.allOf(members.toArray(new CompletableFuture<?>[0])).join();
  }

  private final class Member {
    private final JsonNode command;
    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    private final Set<TopicPartition> source = new HashSet<>();

    Member(JsonNode command, int number) {
      this.command = command;
      Properties properties = new Properties();
      properties.put("bootstrap.servers", bootstrap);
      properties.put("group.id", command.get("group").asText());
      properties.put("group.protocol", command.get("protocol").asText());
      properties.put("isolation.level", "read_committed");
      properties.put("auto.offset.reset", "earliest");
      properties.put("enable.auto.commit", "false");
      properties.put("max.poll.records", command.get("batch").asInt());
      consumer =
          new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
      producer = open(command.get("group").asText() + "-" + number, 60_000);
    }

    void run() {
      try (consumer;
          producer) {
        producer.initTransactions();
        String topic = command.get("source").asText();
        consumer
            .partitionsFor(topic)
            .forEach(each -> source.add(new TopicPartition(topic, each.partition())));
        consumer.subscribe(List.of(topic));
        while (left()) {
          ConsumerRecords<String, String> records = consumer.poll(POLL);
          if (!records.isEmpty()) {
            transact(records);
          }
        }
      }
    }

    private boolean left() {
      return consumer.committed(source).values().stream()
              .mapToLong(each -> each == null ? 0 : each.offset())
              .sum()
          < command.get("until").asLong();
    }

    private void transact(ConsumerRecords<String, String> records) {
      producer.beginTransaction();
      try {
        for (ConsumerRecord<String, String> each : records) {
          producer.send(
              new ProducerRecord<>(
                  command.get("target").asText(), each.partition(), null, each.value()));
        }
        producer.sendOffsetsToTransaction(records.nextOffsets(), consumer.groupMetadata());
        producer.commitTransaction();
      } catch (KafkaException error) {
        producer.abortTransaction();
        seekToCommitted();
        return;
      }
      say(JSON.createObjectNode().put("done", records.count()));
    }

    private void seekToCommitted() {
      Set<TopicPartition> assigned = Set.copyOf(consumer.assignment());
      Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
      for (TopicPartition each : assigned) {
        try {
          consumer.seek(each, committed.get(each) == null ? 0 : committed.get(each).offset());
        } catch (IllegalStateException gone) {
          // By the consumer protocol a partition is taken away in the background, at any time; who
          // gets it next begins where it's committed.
          System.err.println(gone);
        }
      }
    }
  }
}
