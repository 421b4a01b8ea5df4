// Writes records with each codec and reads them as two members of a group, as an application on
// kafka-go does. Prints what was read, and what the group has committed of it in the end.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	partitions = 3
	perCodec   = 50
	patience   = 60 * time.Second
)

var codecs = map[string]kafka.Compression{
	"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	address, topic, group := os.Args[1], os.Args[2], os.Args[3]
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(address), Timeout: patience}
	created, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1},
	}})
	check(err)
	check(created.Errors[topic])
	write(ctx, address, topic)
	first := read(ctx, address, topic, group, len(codecs)*perCodec)
	more := &kafka.Writer{Addr: kafka.TCP(address), Topic: topic, RequiredAcks: kafka.RequireAll}
	check(more.WriteMessages(ctx, kafka.Message{Key: []byte("last"), Value: []byte("last")}))
	check(more.Close())
	second := read(ctx, address, topic, group, 1)
	numbers := make([]int, partitions)
	for number := range numbers {
		numbers[number] = number
	}
	fetched, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: numbers},
	})
	check(err)
	committed := int64(0)
	for _, each := range fetched.Topics[topic] {
		check(each.Error)
		committed += max(each.CommittedOffset, 0)
	}
	deleted, err := client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	check(err)
	check(deleted.Errors[topic])
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"first": first, "second": second, "committed": committed,
	}))
}

func write(ctx context.Context, address string, topic string) {
	for name, codec := range codecs {
		writer := &kafka.Writer{
			Addr: kafka.TCP(address), Topic: topic, Balancer: &kafka.Murmur2Balancer{},
			RequiredAcks: kafka.RequireAll, Compression: codec, BatchTimeout: 5 * time.Millisecond,
		}
		messages := make([]kafka.Message, perCodec)
		for number := range messages {
			text := []byte(fmt.Sprintf("%s %d", name, number))
			header := kafka.Header{Key: "codec", Value: []byte(name)}
			messages[number] = kafka.Message{Key: text, Value: text, Headers: []kafka.Header{header}}
		}
		check(writer.WriteMessages(ctx, messages...))
		check(writer.Close())
	}
}

// Reads so many records as two members, each commits what it has, and says how often each came.
func read(ctx context.Context, address string, topic string, group string, count int) map[string]int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found, lock, members := map[string]int{}, sync.Mutex{}, sync.WaitGroup{}
	for range 2 {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{address}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
			MaxWait: 100 * time.Millisecond, HeartbeatInterval: 500 * time.Millisecond,
		})
		members.Add(1)
		go func() {
			defer members.Done()
			for {
				message, err := reader.FetchMessage(ctx)
				if err != nil {
					break
				}
				check(reader.CommitMessages(context.Background(), message))
				lock.Lock()
				found[string(message.Value)]++
				if len(found) == count {
					cancel()
				}
				lock.Unlock()
			}
			check(reader.Close())
		}()
	}
	members.Wait()
	return found
}
