import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of one Java producer, one after the other, as tests/bench/transactions.py asks for
 * them. The arguments are the bootstrap address, the topic, how many of its partitions get a record
 * in each transaction, the size of a record and the transactional id. Each line of stdin is a number
 * of seconds; the answer is how many transactions were committed and how many seconds it took.
 */
public final class TransactionsClient {
  private TransactionsClient() {}

  public static void main(String[] arguments) throws Exception {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", arguments[0]);
    properties.put("transactional.id", arguments[4]);
    String topic = arguments[1];
    int partitions = Integer.parseInt(arguments[2]);
    byte[] value = new byte[Integer.parseInt(arguments[3])];
    KafkaProducer<byte[], byte[]> producer =
        new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    producer.initTransactions();
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      long startedAt = System.nanoTime();
      long until = startedAt + (long) (Double.parseDouble(line) * 1e9);
      int committed = 0;
      while (System.nanoTime() < until) {
        producer.beginTransaction();
        for (int partition = 0; partition < partitions; partition++) {
          producer.send(new ProducerRecord<>(topic, partition, null, value));
        }
        producer.commitTransaction();
        committed++;
      }
      double seconds = (System.nanoTime() - startedAt) / 1e9;
      System.out.println("committed " + committed + " " + seconds);
    }
    System.exit(0);
  }
}
