package consumer_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outbox-operator/outbox-operator/dispatcher/consumer"
	"github.com/outbox-operator/outbox-operator/hack/testing/pgtest"
)

// The child is this test's binary again, as a consumer's process. Its arguments are variables.
const childDSN, childPayments = "OUTBOX_TEST_CONSUMER_DSN", "OUTBOX_TEST_CONSUMER_PAYMENTS"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		fmt.Fprintln(os.Stderr, serveChild(dsn, os.Getenv(childPayments)))
		os.Exit(1)
	}
	pgtest.Main(m)
}

// serveChild charges for each event by a call to another service, and then writes its effect. It prints where it listens on
// standard output, and ends when its standard input does.
func serveChild(dsn, payments string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	handler := consumer.New(consumer.Options{ID: "billing", Logger: quiet}).HTTP(pool, func(ctx context.Context, tx pgx.Tx, e *consumer.Event) error {
		charge, err := http.NewRequestWithContext(ctx, http.MethodPost, payments, nil)
		if err != nil {
			return err
		}
		charge.Header.Set("Idempotency-Key", e.IdempotencyKey())
		response, err := http.DefaultClient.Do(charge)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
			return errors.Join(err, errors.New("no charge"))
		}
		_, err = tx.Exec(ctx, "insert into effects values ($1, 'billing')", e.ID)
		return err
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, handler)
}

// child is the consumer's process.
type child struct {
	t             *testing.T
	dsn, payments string

	mu      sync.Mutex
	command *exec.Cmd
	stdin   io.Closer
	url     string
}

func (c *child) start() {
	c.command = exec.Command(os.Args[0], "-test.run=^$")
	c.command.Env = append(os.Environ(), childDSN+"="+c.dsn, childPayments+"="+c.payments)
	c.command.Stderr = os.Stderr
	var err error
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		c.t.Errorf("start the consumer: %v", err)
		return
	}
	out, err := c.command.StdoutPipe()
	if err == nil {
		err = c.command.Start()
	}
	if err != nil {
		c.t.Errorf("start the consumer: %v", err)
		return
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		c.t.Errorf("the consumer did not start: %v", err)
	}
	c.url = "http://" + strings.TrimSpace(line)
}

// kill ends the process as kill -9 does, at once. It returns when it is gone.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	_ = c.command.Wait() // it says "killed"
	_ = c.stdin.Close()
}

// restart kills it in the middle of what it does, and starts it again.
func (c *child) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kill()
	c.start()
}

func (c *child) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.url
}
