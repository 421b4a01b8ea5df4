// Transactions of kafkajs, as tests/conformance/transactional_clients.py asks for them: each line of
// stdin is a command, each line of stdout an answer. Usage: node transactions.js BOOTSTRAP
'use strict'

const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

const brokers = process.argv[2].split(',')
const kafka = new Kafka({
  brokers,
  clientId: 'kafkajs',
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 100 },
})
const producers = {}
const transactions = {}

const TIMEOUT_MS = 60000
const PAUSE_MS = 100

const pause = () => new Promise(resolve => setTimeout(resolve, PAUSE_MS))

// What kafkajs gives up at once while a coordinator moves is tried again.
async function again(work) {
  for (const until = Date.now() + TIMEOUT_MS; ; await pause()) {
    try {
      return await work()
    } catch (error) {
      if (Date.now() > until) throw error
    }
  }
}

function open(id, timeout) {
  return kafka.producer({
    transactionalId: id,
    transactionTimeout: timeout,
    idempotent: true,
    maxInFlightRequests: 1,
  })
}

// The producer of kafkajs can't go on after an end that wasn't answered: another one takes over.
async function transform({ source, target, group, until, batch }) {
  const consumer = kafka.consumer({
    groupId: group,
    readUncommitted: false,
    maxWaitTimeInMs: 50,
    sessionTimeout: 10000,
  })
  const admin = kafka.admin()
  await admin.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [source], fromBeginning: true })
  let producer
  const committed = () =>
    again(async () => (await admin.fetchOffsets({ groupId: group, topics: [source] }))[0].partitions)
  // Fences the former producer, and ends what that has left: then the offsets are certain.
  const takeOver = async () => {
    const next = open(`${group}-0`, TIMEOUT_MS)
    try {
      await next.connect()
      await (await next.transaction()).abort()
    } finally {
      await next.disconnect()
    }
  }
  const transact = async (partition, messages) => {
    if (!producer) {
      producer = open(`${group}-0`, TIMEOUT_MS)
      await producer.connect()
    }
    const transaction = await producer.transaction()
    const sent = messages.map(({ value }) => ({ value, partition }))
    await transaction.send({ topic: target, messages: sent })
    const offset = String(Number(messages[messages.length - 1].offset) + 1)
    const topics = [{ topic: source, partitions: [{ partition, offset }] }]
    await transaction.sendOffsets({ consumerGroupId: group, topics })
    await transaction.commit()
  }
  const eachBatch = async ({ batch: { partition, messages }, resolveOffset, heartbeat, isStale }) => {
    for (let first = 0; first < messages.length && !isStale(); first += batch) {
      const part = messages.slice(first, first + batch)
      try {
        await transact(partition, part)
      } catch (error) {
        await producer.disconnect().catch(() => {})
        producer = undefined
        await again(takeOver)
        for (const each of await committed()) {
          consumer.seek({ topic: source, ...each, offset: String(Math.max(0, each.offset)) })
        }
        return
      }
      resolveOffset(part[part.length - 1].offset)
      say({ done: part.length })
      await heartbeat()
    }
  }
  const failed = new Promise((_, reject) =>
    consumer.on(consumer.events.CRASH, event => event.payload.restart || reject(event.payload.error))
  )
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch })
  const total = async () => {
    const offsets = (await committed()).map(each => Math.max(0, each.offset))
    return offsets.reduce((sum, each) => sum + each, 0)
  }
  const complete = async () => {
    while ((await total()) < until) await pause()
  }
  await Promise.race([complete(), failed])
  await consumer.disconnect()
  if (producer) await producer.disconnect()
  await admin.disconnect()
}

async function carryOut(command) {
  const { name } = command
  switch (command.do) {
    case 'open':
      producers[name] = open(command.id, command.timeout_ms)
      return producers[name].connect()
    case 'begin':
      transactions[name] = await producers[name].transaction()
      return
    case 'send': {
      const messages = command.partitions.map(partition => ({ value: command.value, partition }))
      return transactions[name].send({ topic: command.topic, messages })
    }
    case 'commit':
      return transactions[name].commit()
    case 'abort':
      return transactions[name].abort()
    case 'close':
      return producers[name].disconnect()
    case 'transform':
      return transform(command)
    default:
      throw new Error(`no such command: ${command.do}`)
  }
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n')
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      await carryOut(JSON.parse(line))
      say({ ok: true })
    } catch (error) {
      say({ error: error.type || error.name, message: error.message })
    }
  }
  process.exit(0)
}

main()
