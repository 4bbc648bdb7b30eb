package deadletters

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// Where a [Handler] serves.
const (
	ListPath   = "/dead"
	GroupsPath = "/dead/groups"
	CountsPath = "/dead/counts"
	EventsPath = "/events"
)

const (
	// waiting is how many requests wait for the one that runs: the tabs of a few people. More are refused at once.
	waiting = 8
	// requestTimeout bounds a request as a whole, with its wait.
	requestTimeout = 20 * time.Second
)

// Handler serves a source as JSON, one request at a time, for which a few others wait:
//
//	GET /dead/groups?FILTER      [Groups]
//	GET /dead/counts/{by}?FILTER [Counts]; by is tenant, type or aggregate
//	GET /dead?FILTER&limit&after [Page]
//	GET /dead/{id}?payload=true  [DeadLetter]
//	GET /events/{id}?payload=true [History]; id is an event's id or its dedupe key
//
// FILTER has the names of [Filter]'s JSON. An error is a line of text: 400 for ErrInvalidRequest, 404 for
// ErrNotFound, 503 while others run, 500 for the rest. The caller decides who may send requests.
func Handler(source Source) http.Handler {
	h := &handler{turn: make(chan struct{}, 1), places: make(chan struct{}, 1+waiting)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+GroupsPath, h.list(func(ctx context.Context, _ *http.Request, r ListRequest) (any, error) {
		return source.Groups(ctx, r.Filter)
	}))
	mux.HandleFunc("GET "+CountsPath+"/{by}", h.list(func(ctx context.Context, req *http.Request, r ListRequest) (any, error) {
		return source.CountBy(ctx, r.Filter, By(req.PathValue("by")))
	}))
	mux.HandleFunc("GET "+ListPath, h.list(func(ctx context.Context, _ *http.Request, r ListRequest) (any, error) {
		return source.List(ctx, r)
	}))
	mux.HandleFunc("GET "+ListPath+"/{id}", h.byID(func(ctx context.Context, id string, payload bool) (any, error) {
		return source.Show(ctx, id, payload)
	}))
	mux.HandleFunc("GET "+EventsPath+"/{id}", h.byID(func(ctx context.Context, id string, payload bool) (any, error) {
		return source.Event(ctx, id, payload)
	}))
	return mux
}

// handler has a turn for the request that runs, and places for it and those that wait.
type handler struct{ turn, places chan struct{} }

func (h *handler) list(read func(context.Context, *http.Request, ListRequest) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request, err := ParseRequest(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.respond(w, r, func(ctx context.Context) (any, error) { return read(ctx, r, request) })
	}
}

func (h *handler) byID(read func(context.Context, string, bool) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		payload := false
		if text := r.URL.Query().Get("payload"); text != "" {
			var err error
			if payload, err = strconv.ParseBool(text); err != nil {
				http.Error(w, "payload is neither true nor false; correct it", http.StatusBadRequest)
				return
			}
		}
		h.respond(w, r, func(ctx context.Context) (any, error) { return read(ctx, r.PathValue("id"), payload) })
	}
}

func (h *handler) respond(w http.ResponseWriter, r *http.Request, read func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	busy := func() {
		http.Error(w, "other requests are running; try again in a moment", http.StatusServiceUnavailable)
	}
	select {
	case h.places <- struct{}{}:
		defer func() { <-h.places }()
	default:
		busy()
		return
	}
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		busy()
		return
	}
	result, err := func() (any, error) {
		defer func() { <-h.turn }() // also when it panics
		return read(ctx)
	}()
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(result) // fails only when the client is gone
	case errors.Is(err, ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, ErrInvalidRequest):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
