/* A load generator on librdkafka, for `make bench` and `make race`.
 *
 *   load produce BOOTSTRAP TOPIC COUNT SIZE BATCH_BYTES ACKS     (linger.ms=5, no compression)
 *   load consume BOOTSTRAP TOPIC COUNT                           (partition 0 from offset 0)
 *
 * Words KEY=VALUE behind them are settings of librdkafka.
 *
 * BOOTSTRAP may be "mock": librdkafka's own broker inside the client, which stores nothing.
 *
 * Prints one JSON line: {"messages": N, "bytes": N, "seconds": S}. Producing is timed from the first
 * message to the last acknowledgement after one message has gone through, consuming from the first
 * batch to the last, so that connecting counts in neither.
 *
 * It is linked against the library inside the confluent-kafka wheel, which comes without headers:
 * the declarations below are the part of librdkafka's public interface that is used here.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;
typedef struct rd_kafka_message_s {
  int err;
  rd_kafka_topic_t *rkt;
  int32_t partition;
  void *payload;
  size_t len;
  void *key;
  size_t key_len;
  int64_t offset;
  void *_private;
} rd_kafka_message_t;

enum { PRODUCER = 0, CONSUMER = 1, CONF_OK = 0, END_OF_PARTITION = -191, QUEUE_FULL = -184 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *,
                                 void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
int rd_kafka_produce_batch(rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t *, int);
int rd_kafka_poll(rd_kafka_t *, int);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int);
void *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *, int32_t);
int rd_kafka_topic_partition_list_set_offset(rd_kafka_topic_partition_list_t *, const char *,
                                             int32_t, int64_t);
int rd_kafka_assign(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
const char *rd_kafka_err2str(int);

#define CHUNK 1000
#define SILENCE_S 30.0

static char error[512];
static long delivered;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *value) {
  if (rd_kafka_conf_set(conf, key, value, error, sizeof error) != CONF_OK) fail(key, error);
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
  (void)rk, (void)opaque;
  if (message->err) fail("not delivered", rd_kafka_err2str(message->err));
  delivered++;
}

static void wait_delivered(rd_kafka_t *rk, long count) {
  long seen = delivered;
  double last = now();
  while (delivered < count) {
    rd_kafka_poll(rk, 100);
    if (delivered > seen) {
      seen = delivered;
      last = now();
    } else if (now() - last > SILENCE_S) {
      fail("produce", "no acknowledgement for 30 s");
    }
  }
}

static void report(long messages, double bytes, double seconds) {
  printf("{\"messages\": %ld, \"bytes\": %.0f, \"seconds\": %.6f}\n", messages, bytes, seconds);
}

static void produce(rd_kafka_conf_t *conf, const char *topic, long count, size_t size,
                    const char *batch_bytes, const char *acks) {
  set(conf, "linger.ms", "5");
  set(conf, "batch.size", batch_bytes);
  set(conf, "batch.num.messages", "1000000");
  set(conf, "message.max.bytes", "2000000");
  set(conf, "acks", acks);
  set(conf, "queue.buffering.max.messages", "500000");
  set(conf, "queue.buffering.max.kbytes", "262144");
  rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
  rd_kafka_t *rk = rd_kafka_new(PRODUCER, conf, error, sizeof error);
  if (!rk) fail("producer", error);
  rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
  char *payload = malloc(size);
  for (size_t i = 0; i < size; i++) payload[i] = (char)(i * 31 + i / 7);

  rd_kafka_message_t chunk[CHUNK];
  double start = 0;
  long sent = 0;
  while (sent < count) {
    /* The first message goes alone and is waited for: connecting isn't what is measured. */
    int wanted = sent == 0 ? 1 : (count - sent < CHUNK ? (int)(count - sent) : CHUNK);
    memset(chunk, 0, sizeof chunk);
    for (int i = 0; i < wanted; i++) {
      chunk[i].payload = payload;
      chunk[i].len = size;
    }
    int queued = rd_kafka_produce_batch(rkt, 0, 0, chunk, wanted);
    for (int i = 0; i < wanted; i++)
      if (chunk[i].err && chunk[i].err != QUEUE_FULL)
        fail("produce", rd_kafka_err2str(chunk[i].err));
    sent += queued;
    rd_kafka_poll(rk, queued < wanted ? 5 : 0);
    if (start == 0 && sent == 1) {
      wait_delivered(rk, 1);
      start = now();
    }
  }
  wait_delivered(rk, count);
  report(count - 1, (double)(count - 1) * size, now() - start);
}

static void consume(rd_kafka_conf_t *conf, const char *topic, long count) {
  set(conf, "group.id", "load");
  set(conf, "enable.auto.commit", "false");
  set(conf, "queued.min.messages", "1000000");
  rd_kafka_t *rk = rd_kafka_new(CONSUMER, conf, error, sizeof error);
  if (!rk) fail("consumer", error);
  rd_kafka_topic_partition_list_t *places = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(places, topic, 0);
  rd_kafka_topic_partition_list_set_offset(places, topic, 0, 0);
  if (rd_kafka_assign(rk, places)) fail("consume", "the assignment was refused");
  rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(rk);

  rd_kafka_message_t *batch[CHUNK];
  double start = 0, last = now(), bytes = 0;
  long messages = 0, counted = 0;
  while (messages < count) {
    ssize_t got = rd_kafka_consume_batch_queue(queue, 100, batch, CHUNK);
    double at = now();
    for (ssize_t i = 0; i < got; i++) {
      if (batch[i]->err && batch[i]->err != END_OF_PARTITION)
        fail("consume", rd_kafka_err2str(batch[i]->err));
      if (!batch[i]->err) {
        messages++;
        if (start > 0) {
          counted++;
          bytes += batch[i]->len;
        }
      }
      rd_kafka_message_destroy(batch[i]);
    }
    if (got > 0) last = at;
    if (start == 0 && messages) start = at;
    if (at - last > SILENCE_S) fail("consume", "no message for 30 s");
  }
  report(counted, bytes, now() - start);
}

int main(int argc, char **argv) {
  if (argc < 5) fail("usage", "see the head of load.c");
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  if (!strcmp(argv[2], "mock"))
    set(conf, "test.mock.num.brokers", "1");
  else
    set(conf, "bootstrap.servers", argv[2]);
  while (argc > 5 && strchr(argv[argc - 1], '=')) {
    char *key = argv[--argc], *value = strchr(key, '=');
    *value = 0;
    set(conf, key, value + 1);
  }
  if (!strcmp(argv[1], "produce") && argc == 8)
    produce(conf, argv[3], atol(argv[4]), (size_t)atol(argv[5]), argv[6], argv[7]);
  else if (!strcmp(argv[1], "consume") && argc == 5)
    consume(conf, argv[3], atol(argv[4]));
  else
    fail("usage", "see the head of load.c");
  fflush(stdout);
  _Exit(0); /* what librdkafka frees on the way out isn't worth waiting for */
}
