package scenario

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// PoisonType is the event type that the consumer refuses.
const PoisonType = "OrderPoisoned"

// Delivery is one request that the consumer accepted with 204.
type Delivery struct {
	ID uuid.UUID `json:"id"`
	// Token is the fencing token that came with it: the number of the claim's lease.
	Token int64     `json:"token"`
	At    time.Time `json:"at"`
}

// Consumer is an HTTP service that takes CloudEvents in binary mode and keeps a list of what it got.
// GET /deliveries returns the list as JSON, GET /count its length.
type Consumer struct {
	// Work is how long it takes over an event. Defaults to 0.
	Work time.Duration
	// Journal gets a JSON line for each delivery before the response, so that the list outlives the
	// process. Defaults to none.
	Journal io.Writer

	mu         sync.Mutex
	status     int
	deliveries []Delivery
}

// Respond makes the consumer respond to every event with the status. 0 makes it work again.
func (c *Consumer) Respond(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

// ServeHTTP takes events at POST, and shows what it has at GET.
func (c *Consumer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost:
		c.take(w, r)
	case r.URL.Path == "/count":
		fmt.Fprintln(w, len(c.Deliveries()))
	default:
		if err := json.NewEncoder(w).Encode(c.Deliveries()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func (c *Consumer) take(w http.ResponseWriter, r *http.Request) {
	id, err := uuid.Parse(r.Header.Get("ce-id"))
	if err != nil {
		http.Error(w, "ce-id is not a UUID", http.StatusBadRequest)
		return
	}
	token, err := strconv.ParseInt(r.Header.Get("ce-fencingtoken"), 10, 64)
	if err != nil {
		http.Error(w, "ce-fencingtoken is not a number", http.StatusBadRequest)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the sender gave up half-way
	}
	if c.Work > 0 {
		select {
		case <-time.After(c.Work):
		case <-r.Context().Done():
			return
		}
	}
	if r.Header.Get("ce-type") == PoisonType {
		http.Error(w, "poisoned", http.StatusUnprocessableEntity)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status != 0 {
		http.Error(w, "as configured", c.status)
		return
	}
	delivery := Delivery{ID: id, Token: token, At: time.Now()}
	if c.Journal != nil {
		if err := json.NewEncoder(c.Journal).Encode(delivery); err != nil {
			http.Error(w, "cannot write the journal", http.StatusInternalServerError)
			return
		}
	}
	c.deliveries = append(c.deliveries, delivery)
	w.WriteHeader(http.StatusNoContent)
}

// Deliveries returns a copy of the list.
func (c *Consumer) Deliveries() []Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Delivery(nil), c.deliveries...)
}
