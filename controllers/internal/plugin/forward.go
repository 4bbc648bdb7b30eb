package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/outbox-operator/outbox-operator/api/v1alpha1"
	"github.com/outbox-operator/outbox-operator/controllers/internal/desired"
	"github.com/outbox-operator/outbox-operator/controllers/internal/observe"
	"github.com/outbox-operator/outbox-operator/controllers/internal/pods"
	"github.com/outbox-operator/outbox-operator/dispatcher/deadletters"
)

// Forward makes a port of a pod reachable at a URL of this machine, until end is called.
type Forward func(ctx context.Context, cfg *rest.Config, pod *corev1.Pod, port int) (url string, end func(), err error)

// source reads dead letters from one of the dispatcher's pods.
func (p *plugin) source(ctx context.Context, t *target, obd *v1alpha1.OutboxDispatcher) (deadletters.Source, func(), error) {
	all, err := pods.List(ctx, t, obd.Namespace, desired.Selector(obd, desired.ComponentDispatcher))
	if err != nil {
		return nil, nil, err
	}
	pod := choosePod(all)
	if pod == nil {
		return nil, nil, fmt.Errorf("no pod of %s/%s runs, and dead letters are read from a pod; see `kubectl outbox status %s%s`, or use `dispatcher dead` with a database login", obd.Namespace, obd.Name, obd.Name, t.here(obd.Namespace))
	}
	url, end, err := p.Forward(ctx, t.config, pod, desired.Port)
	if err != nil {
		return nil, nil, t.refusedForward(pod, err)
	}
	return deadletters.Client{URL: url, HTTP: p.http}, end, nil
}

// choosePod returns a pod that can be read from, a ready one before others; nil for none.
func choosePod(all []corev1.Pod) (best *corev1.Pod) {
	for i := range all {
		if pod := &all[i]; observe.Running(pod) && (best == nil || !ready(best) && ready(pod)) {
			best = pod
		}
	}
	return best
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// forward is the API server's port-forward. It listens on 127.0.0.1, at a port that is free.
func forward(ctx context.Context, cfg *rest.Config, pod *corev1.Pod, port int) (string, func(), error) {
	dialer, err := dial(cfg, pod)
	if err != nil {
		return "", nil, err
	}
	ctx, end := context.WithCancel(ctx)
	isReady, ended := make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddressesForStreamingWithContext(ctx, dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf(":%d", port)}, isReady, io.Discard, io.Discard)
	if err != nil {
		end()
		return "", nil, err
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-isReady:
	case err := <-ended:
		end()
		return "", nil, cmp.Or(err, errors.New("it ended"))
	case <-ctx.Done():
		end()
		return "", nil, ctx.Err()
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		end()
		return "", nil, err
	}
	return fmt.Sprintf("http://127.0.0.1:%d", ports[0].Local), end, nil
}

// dial speaks over WebSockets, or SPDY where a proxy or an old API server has none.
func dial(cfg *rest.Config, pod *corev1.Pod) (httpstream.Dialer, error) {
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	url := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(cfg)
	if err != nil {
		return nil, err
	}
	sockets, err := portforward.NewSPDYOverWebsocketDialerForStreaming(url, cfg)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(sockets, spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// refusedForward says why there is no port-forward, and what to do.
func (t *target) refusedForward(pod *corev1.Pod, err error) error {
	remedy := "try again, or see `kubectl get pods" + t.here(pod.Namespace) + "`"
	if strings.Contains(err.Error(), "forbidden") {
		remedy = "request the right to create pods/portforward in this namespace"
	}
	return fmt.Errorf("forward to the pod %s/%s: %w; %s", pod.Namespace, pod.Name, err, remedy)
}
