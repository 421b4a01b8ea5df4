// Transactions of franz-go, as tests/conformance/transactional_clients.py asks for them, and logins, as
// tests/conformance/secured_clients.py does: each line of stdin is a command, each line of stdout an
// answer. The argument is the bootstrap address of transactions.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pause   = 100 * time.Millisecond
	session = 6 * time.Second // of a member whose coordinator died before it could leave
)

type command struct {
	Do         string  `json:"do"`
	Name       string  `json:"name"`
	ID         string  `json:"id"`
	TimeoutMs  int     `json:"timeout_ms"`
	Topic      string  `json:"topic"`
	Value      string  `json:"value"`
	Partitions []int32 `json:"partitions"`
	Source     string  `json:"source"`
	Target     string  `json:"target"`
	Group      string  `json:"group"`
	Until      int64   `json:"until"`
	Batch      int     `json:"batch"`

	Bootstrap string   `json:"bootstrap"`
	Values    []string `json:"values"`
	Login     login    `json:"login"`
}

var (
	brokers = strings.Split(os.Args[1], ",")
	clients = map[string]*kgo.Client{}
	ctx     = context.Background()
)

func options(id string, timeout time.Duration) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.TransactionalID(id),
		kgo.TransactionTimeout(timeout),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
	}
}

func carryOut(c command) error {
	client := clients[c.Name]
	switch c.Do {
	case "open":
		made, err := kgo.NewClient(options(c.ID, time.Duration(c.TimeoutMs)*time.Millisecond)...)
		if err != nil {
			return err
		}
		clients[c.Name] = made
		return nil
	case "begin":
		return client.BeginTransaction()
	case "send":
		var records []*kgo.Record
		for _, partition := range c.Partitions {
			records = append(records, &kgo.Record{Topic: c.Topic, Partition: partition, Value: []byte(c.Value)})
		}
		return client.ProduceSync(ctx, records...).FirstErr()
	case "commit":
		return client.EndTransaction(ctx, kgo.TryCommit)
	case "abort":
		return client.EndTransaction(ctx, kgo.TryAbort)
	case "close":
		client.Close()
		return nil
	case "transform":
		transform(c)
		return nil
	case "round":
		return round(c)
	case "enter":
		return enter(c)
	}
	return errors.New("no such command: " + c.Do)
}

// A member of a group, until it has all of the source in the target. A session that can't say how a
// transaction ended is given up; the next one begins where that did end.
func transform(c command) {
	for runSession(c) != nil {
		time.Sleep(pause)
	}
}

// How many records of the source the group hasn't committed.
func leftOf(client *kgo.Client, c command) (int64, error) {
	offsets, err := kadm.NewClient(client).FetchOffsetsForTopics(ctx, c.Group, c.Source)
	if err == nil {
		err = offsets.Error()
	}
	left := c.Until
	offsets.Each(func(o kadm.OffsetResponse) { left -= max(o.At, 0) })
	return left, err
}

func runSession(c command) error {
	member, err := kgo.NewGroupTransactSession(append(
		options(c.Group+"-0", time.Minute),
		kgo.ConsumerGroup(c.Group),
		kgo.ConsumeTopics(c.Source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(session),
	)...)
	if err != nil {
		return err
	}
	defer member.Close()
	// Ends what the session before left open. It would come with the first record otherwise, and no
	// record comes before the offsets are stable.
	if _, _, err := member.Client().ProducerID(ctx); err != nil {
		return err
	}
	// Only now: a commit that was under way counts from when it has ended, and who waits for records
	// that it had waits for ever.
	left, err := leftOf(member.Client(), c)
	if err != nil {
		return err
	}
	for left > 0 {
		fetches := member.PollRecords(ctx, c.Batch)
		if fetches.NumRecords() == 0 {
			continue // an error is told here, and what failed is tried again
		}
		if err := member.Begin(); err != nil {
			return err
		}
		promise := kgo.AbortingFirstErrPromise(member.Client())
		fetches.EachRecord(func(r *kgo.Record) {
			member.Produce(ctx, &kgo.Record{Topic: c.Target, Partition: r.Partition, Value: r.Value}, promise.Promise())
		})
		committed, err := member.End(ctx, promise.Err() == nil)
		if err != nil {
			return err
		}
		if committed {
			left -= int64(fetches.NumRecords())
			say(map[string]any{"done": fetches.NumRecords()})
		}
	}
	return nil
}

func say(answer map[string]any) {
	line, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		err := carryOut(c)
		var known *kerr.Error
		switch {
		case err == nil:
			say(map[string]any{"ok": true})
		case errors.As(err, &known):
			say(map[string]any{"error": known.Message})
		default:
			say(map[string]any{"error": err.Error()})
		}
	}
}
