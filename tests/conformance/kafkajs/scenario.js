// What kafkajs is asked to do against a broker. Prints one JSON object: what it saw, judged by
// test_kafkajs.py. Usage: node scenario.js BOOTSTRAP TOPIC T0_MS
'use strict'

const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')

const [bootstrap, topic, start] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], clientId: 'kafkajs', logLevel: logLevel.NOTHING })
const T0 = Number(start)
const large = Buffer.alloc(10 * 1024 * 1024, 'x')

// Runs a consumer until it has seen `count` records.
async function consume(groupId, count, { from, commit = true } = {}) {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: 50, retry: { retries: 2 } })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const seen = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (seen.length >= count) return
          seen.push({
            partition,
            offset: Number(message.offset),
            key: message.key && message.key.toString(),
            size: message.value.length,
            value: message.value.toString().slice(0, 20),
            timestamp: Number(message.timestamp),
            trace: message.headers.trace && message.headers.trace.toString(),
          })
          if (seen.length === count) resolve()
        },
      })
      .catch(reject)
    if (from !== undefined) consumer.seek({ topic, partition: 0, offset: String(from) })
  })
  if (commit) {
    const offset = String(seen[seen.length - 1].offset + 1)
    await consumer.commitOffsets([{ topic, partition: 0, offset }])
  }
  await consumer.disconnect()
  return seen
}

async function main() {
  const saw = {}
  const admin = kafka.admin()
  await admin.connect()
  saw.created = await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })
  saw.createdAgain = await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] })

  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
    const messages = Array.from({ length: 10 }, (_, i) => ({
      key: `key-${i}`,
      value: `value-${i}`,
      headers: { trace: `trace-${i}` },
      timestamp: String(T0 + i * 1000),
      partition: 0,
    }))
    await producer.send({ topic, messages, compression, acks: -1 })
  }
  saw.watermarks = (await admin.fetchTopicOffsets(topic)).map(p => [Number(p.low), Number(p.high)])
  saw.atTime = (await admin.fetchTopicOffsetsByTimestamp(topic, T0 + 4500)).map(p => p.offset)
  saw.first = await consume(`first-${topic}`, 12)
  saw.resumed = await consume(`first-${topic}`, 8)
  saw.sought = await consume(`sought-${topic}`, 3, { from: 17, commit: false })
  saw.committed = (await admin.fetchOffsets({ groupId: `first-${topic}`, topics: [topic] }))
    .flatMap(t => t.partitions.map(p => p.offset))

  const refused = await producer
    .send({ topic, messages: [{ value: large, partition: 0 }] })
    .then(() => 'accepted', error => error.type)
  saw.largeRefused = refused
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const entry = { name: 'max.message.bytes', value: '11534336' }
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: [entry] }] })
  const config = await admin.describeConfigs({ resources: [{ ...resource, configNames: [entry.name] }] })
  saw.config = config.resources[0].configEntries.map(e => [e.configName, e.configValue])
  const answer = await producer.send({ topic, messages: [{ value: large, partition: 0 }] })
  saw.largeOffset = answer[0].baseOffset
  saw.largeBack = (await consume(`large-${topic}`, 1, { from: 20 })).map(m => m.size)

  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  const metadata = await admin.fetchTopicMetadata({ topics: [topic] })
  saw.partitions = metadata.topics[0].partitions.length
  await producer.disconnect()
  await admin.deleteTopics({ topics: [topic] })
  saw.listed = (await admin.listTopics()).includes(topic)
  await admin.disconnect()
  console.log(JSON.stringify(saw))
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
