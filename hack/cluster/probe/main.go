// probe is the workload of test.sh: a server, and the requests to send from inside a pod.
//
//	probe serve ADDRESS   responds to every request with its host name
//	probe get URL         prints the response of the URL
//	probe lookup NAME     prints the addresses of a name
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: probe serve ADDRESS | get URL | lookup NAME")
		os.Exit(2)
	}
	verbs := map[string]func(string) (string, error){"serve": serve, "get": get, "lookup": lookup}
	verb, ok := verbs[os.Args[1]]
	if !ok {
		fmt.Fprintln(os.Stderr, "probe: unknown verb", os.Args[1])
		os.Exit(2)
	}
	output, err := verb(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	fmt.Println(output)
}

func serve(address string) (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", err
	}
	fmt.Println("serving as", name)
	return "", http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, name)
	}))
}

func get(url string) (string, error) {
	client := http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil},
	}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

func lookup(name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	return strings.Join(addresses, " "), err
}
