package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const partitions = 4
const perCodec = 40

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

type groupAnswer struct {
	First     map[string][]string // by member, as are its partitions
	Claims    map[string][]int32
	Left      []string // read when one has left
	Resumed   []string // by one that came when nobody was there
	Committed int64
	States    []string
}

// A member of a group; what it reads and has been given is kept under its lock.
type member struct {
	lock   sync.Mutex
	values []string
	claims []int32
	stop   context.CancelFunc
	ended  chan error
	group  sarama.ConsumerGroup
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.claims = nil
	for _, some := range session.Claims() {
		m.claims = append(m.claims, some...)
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.lock.Lock()
			m.values = append(m.values, string(message.Value))
			m.lock.Unlock()
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) read() []string {
	m.lock.Lock()
	defer m.lock.Unlock()
	return append([]string{}, m.values...)
}

func (m *member) given() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	return append([]int32{}, m.claims...)
}

func (m *member) leave() {
	m.stop()
	check(<-m.ended)
	check(m.group.Close())
}

func join(bootstrap, topic, group string) *member {
	config := groupConfig("none")
	joined, err := sarama.NewConsumerGroup([]string{bootstrap}, group, config)
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	m := &member{stop: stop, ended: make(chan error, 1), group: joined}
	go func() {
		for ctx.Err() == nil { // a session ends with each rebalance
			if err := joined.Consume(ctx, []string{topic}, m); err != nil {
				m.ended <- err
				return
			}
		}
		m.ended <- nil
	}()
	return m
}

func groupConfig(codec string) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	check(config.Producer.Compression.UnmarshalText([]byte(codec)))
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return config
}

func send(bootstrap, topic, codec string, values []string) {
	producer, err := sarama.NewSyncProducer([]string{bootstrap}, groupConfig(codec))
	check(err)
	var messages []*sarama.ProducerMessage
	for number, value := range values {
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Partition: int32(number % partitions), Value: sarama.StringEncoder(value),
		})
	}
	check(producer.SendMessages(messages))
	check(producer.Close())
}

func until(what string, so func() bool) {
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic("waited in vain until " + what)
		}
	}
}

func state(admin sarama.ClusterAdmin, group string) string {
	found, err := admin.DescribeConsumerGroups([]string{group})
	check(err)
	return found[0].State
}

// Two members of a group share a topic's partitions, one leaves, both have left, another comes.
// Prints what each read, and what was committed.
func beGroup(bootstrap, topic, group string) {
	admin, err := sarama.NewClusterAdmin([]string{bootstrap}, groupConfig("none"))
	check(err)
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
	check(admin.CreateTopic(topic, detail, false))
	first, second := join(bootstrap, topic, group), join(bootstrap, topic, group)
	until("each has its part", func() bool {
		return len(first.given()) == partitions/2 && len(second.given()) == partitions/2
	})
	for _, codec := range codecs {
		var values []string
		for number := 0; number < perCodec; number++ {
			values = append(values, fmt.Sprintf("%s %d", codec, number))
		}
		send(bootstrap, topic, codec, values)
	}
	until("all is read", func() bool {
		return len(first.read())+len(second.read()) >= perCodec*len(codecs)
	})
	answer := groupAnswer{
		First:  map[string][]string{"first": first.read(), "second": second.read()},
		Claims: map[string][]int32{"first": first.given(), "second": second.given()},
		States: []string{state(admin, group)},
	}

	second.leave()
	until("who stayed has all", func() bool { return len(first.given()) == partitions })
	before := len(first.read())
	send(bootstrap, topic, "none", []string{"left 0", "left 1", "left 2", "left 3"})
	until("it reads on", func() bool { return len(first.read()) >= before+partitions })
	answer.Left = first.read()[before:]
	first.leave()
	answer.States = append(answer.States, state(admin, group))

	offsets, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: {0, 1, 2, 3}})
	check(err)
	for partition := int32(0); partition < partitions; partition++ {
		answer.Committed += offsets.GetBlock(topic, partition).Offset
	}
	third := join(bootstrap, topic, group)
	send(bootstrap, topic, "none", []string{"resumed"})
	until("one that comes later reads", func() bool { return len(third.read()) > 0 })
	answer.Resumed = third.read()
	third.leave()
	check(admin.DeleteConsumerGroup(group))
	check(json.NewEncoder(os.Stdout).Encode(answer))
}
