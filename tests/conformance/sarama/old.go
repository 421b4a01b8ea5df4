package main

import (
	"encoding/json"
	"os"
	"time"

	"github.com/IBM/sarama"
)

type read struct {
	Offset    int64
	Key       string
	Value     string
	Timestamp int64
}

type oldAnswer struct {
	Offsets   []int64
	Read      []read
	Committed int64
	Ends      [2]int64
	Created   string
	Deleted   string
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Produces, consumes and commits as a client of an old version, 0.8.2 or 0.10.2. Prints what was
// written and read, the committed offset and what became of a topic that it created and deleted.
func beOld(bootstrap, version, topic, codec string) {
	config := sarama.NewConfig()
	parsed, err := sarama.ParseKafkaVersion(version)
	check(err)
	config.Version = parsed
	config.ApiVersionsRequest = false
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	check(config.Producer.Compression.UnmarshalText([]byte(codec)))
	config.Producer.Flush.Messages = 10
	config.Producer.Flush.Frequency = time.Second
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	client, err := sarama.NewClient([]string{bootstrap}, config)
	check(err)
	var answer oldAnswer

	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	var messages []*sarama.ProducerMessage
	for number := 0; number < 10; number++ {
		messages = append(messages, &sarama.ProducerMessage{
			Topic:     topic,
			Key:       sarama.StringEncoder("key"),
			Value:     sarama.StringEncoder(string(rune('a' + number))),
			Timestamp: time.UnixMilli(1_700_000_000_000 + int64(number)),
		})
	}
	check(producer.SendMessages(messages))
	for _, message := range messages {
		answer.Offsets = append(answer.Offsets, message.Offset)
	}
	answer.Ends[0], err = client.GetOffset(topic, 0, sarama.OffsetOldest)
	check(err)
	answer.Ends[1], err = client.GetOffset(topic, 0, sarama.OffsetNewest)
	check(err)

	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	check(err)
	for int64(len(answer.Read)) < answer.Ends[1] {
		select {
		case message := <-partition.Messages():
			answer.Read = append(answer.Read, read{
				message.Offset, string(message.Key), string(message.Value), message.Timestamp.UnixMilli(),
			})
		case <-time.After(20 * time.Second):
			panic("nothing to read")
		}
	}
	check(partition.Close())

	for round := 0; round < 2; round++ { // the second reads what the first has committed
		manager, err := sarama.NewOffsetManagerFromClient("group-"+topic, client)
		check(err)
		managed, err := manager.ManagePartition(topic, 0)
		check(err)
		answer.Committed, _ = managed.NextOffset()
		managed.MarkOffset(7, "")
		check(managed.Close())
		check(manager.Close())
	}
	if parsed.IsAtLeast(sarama.V0_10_2_0) {
		admin, err := sarama.NewClusterAdminFromClient(client)
		check(err)
		answer.Created = text(admin.CreateTopic(topic+"-new", &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false))
		answer.Deleted = text(admin.DeleteTopic(topic + "-new"))
	}
	check(json.NewEncoder(os.Stdout).Encode(answer))
}

func text(err error) string {
	if err != nil {
		return err.Error()
	}
	return "done"
}
