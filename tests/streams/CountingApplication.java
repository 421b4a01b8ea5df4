import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts the records of a topic by the first word of their values.
 *
 * <p>Each record is written to a topic of Streams' own, by that word, and counted out of that; every
 * change of a count is written. Arguments: bootstrap, application id, state folder, source, target,
 * processing guarantee. It prints its state whenever that changes, and ends with its stdin.
 */
public final class CountingApplication {
  public static void main(String[] arguments) throws Exception {
    StreamsBuilder builder = new StreamsBuilder();
    builder.<String, String>stream(arguments[3])
        .selectKey((key, value) -> value.substring(0, value.indexOf(' ')))
        .groupByKey(Grouped.as("by-word"))
        .count(Materialized.as("counts"))
        .toStream()
        .to(arguments[4], Produced.with(Serdes.String(), Serdes.Long()));
    Properties properties = new Properties();
    properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
    properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
    properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[5]);
    properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
    properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
    properties.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    properties.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 10_000);
    KafkaStreams streams = new KafkaStreams(builder.build(), properties);
    streams.setStateListener((after, before) -> System.out.println(after));
    streams.start();
    while (System.in.read() >= 0) {}
    streams.close();
  }
}
