// kafkajs that has to log in, as tests/conformance/secured_clients.py asks for it: each line of stdin is
// a command, each line of stdout an answer.
'use strict'

const fs = require('fs')
const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

function connect(bootstrap, { mechanism, username, password, ca, certificate, key }) {
  const ssl = { ca: [fs.readFileSync(ca)] }
  if (certificate) Object.assign(ssl, { cert: fs.readFileSync(certificate), key: fs.readFileSync(key) })
  const sasl = mechanism ? { mechanism: mechanism.toLowerCase(), username, password } : undefined
  return new Kafka({ brokers: [bootstrap], clientId: 'kafkajs', logLevel: logLevel.NOTHING, ssl, sasl })
}

// Records to a topic, and out of it by a consumer of a group.
async function round({ bootstrap, topic, values, login }) {
  const kafka = connect(bootstrap, login)
  const producer = kafka.producer({ allowAutoTopicCreation: true })
  await producer.connect()
  try {
    await producer.send({ topic, messages: values.map(value => ({ value })) })
  } finally {
    await producer.disconnect()
  }
  const consumer = kafka.consumer({ groupId: topic, maxWaitTimeInMs: 100 })
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    return await new Promise((resolve, reject) => {
      const read = []
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      const eachMessage = async ({ message }) => {
        if (read.push(message.value.toString()) === values.length) resolve(read)
      }
      consumer.run({ eachMessage }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
}

function say(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n')
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    try {
      say({ read: await round(JSON.parse(line)) })
      say({ ok: true })
    } catch (error) {
      say({ error: `${error.name}: ${error.message}` })
    }
  }
  process.exit(0)
}

main()
