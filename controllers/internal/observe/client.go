package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outbox-operator/outbox-operator/api/status"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
)

const (
	// timeout bounds one request.
	timeout = 2 * time.Second
	// maxHeader and maxBody bound a response. A pod sends at most status.MaxBrief; a later version may send more.
	maxHeader = 16 << 10
	maxBody   = 4 * status.MaxBrief
)

// Client requests the status of pods. The memory of a response is bounded, whatever a pod sends.
type Client struct {
	// URL of a pod's status. Defaults to [PodURL].
	URL  func(*corev1.Pod) string
	http http.Client

	decoding sync.Mutex // one at a time: JSON grows when it is decoded
}

// NewClient returns a Client that goes to the pods directly, never through a proxy.
func NewClient() *Client {
	return &Client{
		URL: PodURL,
		http: http.Client{
			Timeout:       timeout,
			Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// PodURL is the brief status at the pod's address.
func PodURL(pod *corev1.Pod) string {
	return "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(desired.Port)) + status.BriefPath
}

// Running reports whether a pod can be polled: it runs, ready or not, and is not being deleted.
func Running(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil
}

// get returns the brief status at the URL.
func (c *Client) get(ctx context.Context, url string) (*status.Status, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responded %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the response of %s: %w", url, err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("%s responded with more than %d bytes, which no dispatcher does", url, maxBody)
	}
	c.decoding.Lock()
	defer c.decoding.Unlock()
	var current status.Status
	if err := json.Unmarshal(body, &current); err != nil {
		return nil, fmt.Errorf("%s did not respond with a status: %w", url, err)
	}
	current = current.Brief() // also of a pod that sends more
	return &current, nil
}
