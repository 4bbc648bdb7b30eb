package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/outbox-operator/outbox-operator/hack/e2e/scenario"
)

// soon is when the build of Kubernetes is over on a machine that has it.
const soon = 10 * time.Second

// kubernetes plays the story on a real cluster.
func (d *demo) kubernetes(ctx context.Context) error {
	built, played, err := d.build(ctx)
	if err != nil {
		return err
	}
	d.say("A Kubernetes cluster, and the operator in it")
	wait, stop, err := d.image(ctx)
	if err != nil {
		return err
	}
	cluster, err := d.cluster(ctx, built)
	if errors.Is(err, scenario.ErrNoCluster) {
		stop()
		fmt.Println("   This machine can have no cluster (the sentence above says why).")
		if played {
			return nil
		}
		fmt.Println("   The same story without Kubernetes:")
		return d.local(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Println("   installing the operator")
	err = await(ctx, os.Stdout, noLimit, "the operator: the build of its image, and its start", func(ctx context.Context) error {
		archive, err := wait()
		if err == nil {
			err = cluster.LoadArchive(ctx, archive)
		}
		if err != nil {
			return err
		}
		// By default the operator looks at its dispatchers each 10 seconds, which is most of this story.
		return cluster.Deploy(ctx, "--observe-interval=2s")
	})
	if err != nil {
		return err
	}

	srv, shop, err := d.shop(ctx, cluster.HostListen)
	if err != nil {
		return err
	}
	d.say("A consumer, in a process of its own, which counts what it gets")
	consumer, err := d.consumer(ctx, cluster.HostListen)
	if err != nil {
		return err
	}

	manifests := scenario.Manifests{
		Namespace: "shop", Name: "orders", Replicas: 2, SinkURL: "http://" + net.JoinHostPort(cluster.HostIP, consumer.port),
		DispatcherDSN: shop.DSN(shop.Dispatcher, cluster.HostIP, srv.Port),
		OwnerDSN:      shop.DSN(shop.Owner, cluster.HostIP, srv.Port),
	}
	d.say("kubectl apply: two Secrets with the logins, and this OutboxDispatcher")
	fmt.Print(scenario.Indent(manifests.Dispatcher()))
	if err := cluster.Apply(ctx, manifests.Secrets()); err != nil {
		return err
	}
	if err := cluster.Apply(ctx, manifests.Dispatcher()); err != nil {
		return err
	}
	stage := &scenario.Dispatcher{Cluster: cluster, Namespace: "shop", Name: "orders"}
	fmt.Println("\n   waiting for Ready: the operator runs a Job that makes the outbox schema, then the pods")
	err = await(ctx, os.Stdout, 10*time.Minute, "the dispatcher to be Ready", func(ctx context.Context) error {
		return stage.WaitCondition(ctx, "Ready", "True", "")
	})
	if err != nil {
		return err
	}
	if err := shop.GrantApp(ctx); err != nil {
		return err
	}
	if err := d.play(ctx, stage, shop, shop.DSN(shop.App, "127.0.0.1", srv.Port), consumer.url); err != nil {
		return err
	}
	return d.aftermath(ctx, stage, shop)
}

// build builds Kubernetes. Where that takes minutes, it plays the story with processes meanwhile. built waits for the build's end.
func (d *demo) build(ctx context.Context) (built func() error, played bool, err error) {
	building, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		failed = scenario.BuildCluster(building, ".")
	}()
	d.defers(func() { cancel(); <-done })
	built = func() error { <-done; return failed }
	select {
	case <-done:
		return built, false, nil
	case <-time.After(soon):
	}
	fmt.Println("\n   Kubernetes is built, which takes minutes, once on this machine. Meanwhile the story without it:")
	first := &demo{orders: d.orders, started: d.started}
	return built, true, first.run(ctx, first.local)
}

// cluster starts the cluster when it is built, until the end of the demo.
func (d *demo) cluster(ctx context.Context, built func() error) (cluster *scenario.Cluster, err error) {
	err = await(ctx, os.Stdout, noLimit, "the cluster: its build, the first time, and its start", func(ctx context.Context) (err error) {
		if err = built(); err == nil {
			cluster, err = scenario.UpCluster(ctx, ".", "demo")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	d.defers(func() {
		if err := cluster.Down(context.Background()); err != nil {
			fmt.Println("demo:", err)
		}
	})
	return cluster, nil
}

// image builds the operator's image while the cluster starts, without the SDKs of clouds. wait returns its archive, and
// stop ends the build.
func (d *demo) image(ctx context.Context) (wait func() (archive string, err error), stop func(), err error) {
	dir, err := os.MkdirTemp("", "outbox-demo-")
	if err != nil {
		return nil, nil, err
	}
	archive := filepath.Join(dir, "image.tar")
	if err := os.Setenv("TAGS", "nocloud"); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		failed = scenario.BuildImage(ctx, ".", scenario.Image, archive)
	}()
	wait = func() (string, error) { <-done; return archive, failed }
	stop = func() { cancel(); <-done }
	d.defers(func() { stop(); _ = os.RemoveAll(dir) })
	return wait, stop, nil
}

// aftermath shows what the one on call finds.
func (d *demo) aftermath(ctx context.Context, stage *scenario.Dispatcher, shop *scenario.Shop) error {
	d.say("What is left for a person: the poisoned event")
	err := await(ctx, os.Stdout, 5*time.Minute, "the operator to report it", func(ctx context.Context) error {
		return stage.WaitCondition(ctx, "DeadLettersPresent", "True", "DeadLetters")
	})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"get", "outboxdispatchers"},
		{"get", "outboxdispatchers", "-o", "wide"},
		{"get", "outboxdispatcher", "orders", "-o", `jsonpath={range .status.conditions[*]}{.type}{"\t"}{.status}{"\t"}{.reason}{"\t"}{.message}{"\n"}{end}`},
		{"get", "events", "--field-selector=involvedObject.kind=OutboxDispatcher", "-o", "custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message"},
	} {
		out, err := stage.Run(ctx, append([]string{"-n", stage.Namespace}, args...)...)
		if err != nil {
			return err
		}
		fmt.Printf("  $ kubectl -n %s %s\n%s\n", stage.Namespace, scenario.Shell(args), scenario.Indent(out))
	}
	deadLetters, err := scenario.DeadLetters(ctx, shop.Admin)
	if err != nil {
		return err
	}
	fmt.Printf("  The table outbox_dead_letters:\n%s", scenario.Indent(deadLetters))
	if d.keep {
		fmt.Printf("\n  To look around:\n\n    export KUBECONFIG=%s PATH=%s:$PATH\n    kubectl -n shop get obd -w\n    kubectl -n shop describe obd orders\n    kubectl -n shop logs -l outbox.dev/dispatcher=orders\n",
			stage.Kubeconfig, filepath.Dir(stage.Kubectl))
	}
	return nil
}
