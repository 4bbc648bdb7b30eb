// Package observe asks dispatcher pods what they see.
package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/dispatcher/report"
)

const (
	// timeout bounds one question. A pod that does not answer is asked once more, so that one lost
	// packet changes no condition.
	timeout = 2 * time.Second
	tries   = 2
	// parallel is how many pods are asked at once.
	parallel = 16
	// maxBody bounds an answer; one topic takes some 200 bytes of it.
	maxBody = 16 << 20
)

// Client asks pods for their status.
type Client struct {
	// URL is where a pod answers. Defaults to [PodURL].
	URL  func(*corev1.Pod) string
	http http.Client
}

// NewClient returns a Client that goes to the pods directly, never through a proxy.
func NewClient() *Client {
	return &Client{
		URL: PodURL,
		http: http.Client{
			Timeout:       timeout,
			Transport:     &http.Transport{IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 1},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// PodURL is the status page at the pod's address.
func PodURL(pod *corev1.Pod) string {
	return "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(desired.Port)) + report.Path
}

// Running selects the pods that can be asked: they run, ready or not, and are not about to go.
func Running(pods []corev1.Pod) []corev1.Pod {
	var running []corev1.Pod
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil {
			running = append(running, pod)
		}
	}
	return running
}

// All asks the pods at once and returns the answers of the dispatcher with the name. Pods that do
// not answer, or that answer for another (their address was given away), are left out.
func (c *Client) All(ctx context.Context, name string, pods []corev1.Pod) []report.Status {
	answers := make([]*report.Status, len(pods))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range pods {
		group.Go(func() error {
			status, err := c.ask(ctx, &pods[i])
			switch {
			case err != nil:
				ctrl.LoggerFrom(ctx).Info("A pod does not tell its status", "pod", pods[i].Name, "error", err.Error())
			case status.Name == name:
				answers[i] = status
			}
			return nil
		})
	}
	_ = group.Wait() // none returns an error
	var statuses []report.Status
	for _, answer := range answers {
		if answer != nil {
			statuses = append(statuses, *answer)
		}
	}
	return statuses
}

func (c *Client) ask(ctx context.Context, pod *corev1.Pod) (status *report.Status, err error) {
	for range tries {
		if status, err = c.get(ctx, c.URL(pod)); err == nil {
			return status, nil
		}
	}
	return nil, err
}

func (c *Client) get(ctx context.Context, url string) (*report.Status, error) {
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
		return nil, fmt.Errorf("%s answered %s", url, resp.Status)
	}
	status := &report.Status{}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(status); err != nil {
		return nil, fmt.Errorf("%s did not answer with a status: %w", url, err)
	}
	return status, nil
}
