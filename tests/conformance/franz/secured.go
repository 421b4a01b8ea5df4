package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const roundTimeout = time.Minute

// What a client shows to be let in: a name and a password, a token in place of that, or a certificate of
// its own. Without an authority there is no TLS.
type login struct {
	Mechanism   string `json:"mechanism"`
	Username    string `json:"username"`
	Password    string `json:"password"`
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

func (l login) options(bootstrap string) ([]kgo.Opt, error) {
	found := []kgo.Opt{kgo.SeedBrokers(bootstrap)}
	if l.CA != "" {
		config, err := l.tls()
		if err != nil {
			return nil, err
		}
		found = append(found, kgo.DialTLSConfig(config))
	}
	switch l.Mechanism {
	case "":
	case "PLAIN":
		found = append(found, kgo.SASL(plain.Auth{User: l.Username, Pass: l.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		found = append(found, kgo.SASL(scram.Auth{User: l.Username, Pass: l.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		found = append(found, kgo.SASL(scram.Auth{User: l.Username, Pass: l.Password}.AsSha512Mechanism()))
	case "OAUTHBEARER":
		found = append(found, kgo.SASL(oauth.Auth{Token: l.Password}.AsMechanism()))
	default:
		return nil, errors.New("no such mechanism: " + l.Mechanism)
	}
	return found, nil
}

func (l login) tls() (*tls.Config, error) {
	pem, err := os.ReadFile(l.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in " + l.CA)
	}
	if l.Certificate != "" {
		own, err := tls.LoadX509KeyPair(l.Certificate, l.Key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// A client that stays, by its name, for records to the first partition of a topic.
func enter(c command) error {
	options, err := c.Login.options(c.Bootstrap)
	if err != nil {
		return err
	}
	made, err := kgo.NewClient(append(options,
		kgo.ClientID(c.Name),
		kgo.AllowAutoTopicCreation(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
	)...)
	if err != nil {
		return err
	}
	clients[c.Name] = made
	return nil
}

// Records to a topic by one client, and out of it by another, which is of a group.
func round(c command) error {
	options, err := c.Login.options(c.Bootstrap)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	producer, err := kgo.NewClient(append(options, kgo.AllowAutoTopicCreation())...)
	if err != nil {
		return err
	}
	defer producer.Close()
	// It would be tried again and again otherwise, until the records are too old.
	if err := producer.Ping(limited); err != nil {
		return err
	}
	for _, value := range c.Values {
		record := &kgo.Record{Topic: c.Topic, Value: []byte(value)}
		if err := producer.ProduceSync(limited, record).FirstErr(); err != nil {
			return err
		}
	}
	consumer, err := kgo.NewClient(append(options,
		kgo.ConsumerGroup(c.Topic),
		kgo.ConsumeTopics(c.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return err
	}
	defer consumer.Close()
	read := []string{}
	for len(read) < len(c.Values) {
		fetches := consumer.PollFetches(limited)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { read = append(read, string(r.Value)) })
	}
	say(map[string]any{"read": read})
	return nil
}
