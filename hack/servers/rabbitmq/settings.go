package rabbitmq

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/outbox-operator/outbox-operator/hack/internal/daemon"
)

// Ports that are not for clients.
const (
	epmdPort = "epmd"
	distPort = "distribution"
)

// script returns a command that runs one of RabbitMQ's scripts for this node alone.
func (b *Broker) script(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(scripts, name), args...)
	cmd.Dir = b.Dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + b.Dir,
		"RABBITMQ_NODENAME=outbox@localhost",
		"RABBITMQ_ALLOW_INPUT=true", // the node is this very process then, not a child of a shell
		"RABBITMQ_MNESIA_BASE=" + b.Path("data"),
		"RABBITMQ_LOG_BASE=" + b.Dir, "RABBITMQ_LOGS=-",
		"RABBITMQ_CONFIG_FILE=" + b.Path("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + b.Path("none.config"),
		"RABBITMQ_CONF_ENV_FILE=" + b.Path("none"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + b.Path("plugins"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + b.Path("data"),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(b.ports[distPort]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"ERL_EPMD_ADDRESS=127.0.0.1", "ERL_EPMD_PORT=" + strconv.Itoa(b.ports[epmdPort]),
	}
	return cmd
}

// configure writes the node's files, and starts Erlang's name service.
func (b *Broker) configure() error {
	b.ports = map[string]int{}
	listeners := []string{epmdPort, distPort, Plain}
	for _, l := range b.opts.Listeners {
		listeners = append(listeners, l.Name)
	}
	for _, name := range listeners {
		port, err := daemon.FreePort()
		if err != nil {
			return err
		}
		b.ports[name] = port
	}
	definitions, err := json.Marshal(b.definitions())
	if err != nil {
		return err
	}
	files := map[string]string{
		"rabbitmq.conf": b.conf(), "definitions.json": string(definitions),
		"plugins": "[" + strings.Join(append(b.opts.Plugins, "rabbitmq_auth_mechanism_ssl"), ",") + "].\n", ".erlang.cookie": "outbox",
	}
	for _, l := range b.opts.Listeners {
		files[l.Name+".crt"], files[l.Name+".key"], files[l.Name+".ca"] = l.CertPEM, l.KeyPEM, l.ClientCAPEM
	}
	if err := os.Mkdir(b.Path("data"), 0o700); err != nil {
		return fmt.Errorf("make the broker's directory: %w", err)
	}
	if err := errors.Join(daemon.Give(b.Owner(), b.Path("data")), b.Write(files)); err != nil {
		return err
	}
	names := exec.Command("epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(b.ports[epmdPort]))
	if b.epmd, err = daemon.Start(names, b.Owner(), syscall.SIGKILL); err != nil {
		b.epmd = nil
		return fmt.Errorf("start Erlang's name service: %w", err)
	}
	return nil
}

func (b *Broker) conf() string {
	settings := map[string]string{
		"listeners.tcp.1":  b.Address(Plain),
		"load_definitions": b.Path("definitions.json"),
		// EXTERNAL needs these, though each listener has its own.
		"ssl_options.verify":               "verify_peer",
		"ssl_options.fail_if_no_peer_cert": "true",
		"auth_mechanisms.1":                "PLAIN",
		"auth_mechanisms.2":                "EXTERNAL",
		"ssl_cert_login_from":              "common_name",
		"disk_free_limit.absolute":         "50MB",
	}
	maps.Copy(settings, b.opts.Settings)
	return daemon.Lines("%s = %s", settings)
}

// definitions are the users and the vhost /, in RabbitMQ's own form.
func (b *Broker) definitions() any {
	type object map[string]any
	all := [3]string{".*", ".*", ".*"}
	users := []object{{"name": Admin, "password_hash": hash(Admin), "tags": "administrator"}}
	permission := func(user string, p [3]string) object {
		return object{"user": user, "vhost": "/", "configure": p[0], "write": p[1], "read": p[2]}
	}
	permissions := []object{permission(Admin, all)}
	for user, password := range b.opts.Users {
		h := ""
		if password != "" {
			h = hash(password)
		}
		users = append(users, object{"name": user, "password_hash": h, "tags": ""})
	}
	for user, p := range b.opts.Permissions {
		permissions = append(permissions, permission(user, p))
	}
	return object{"vhosts": []object{{"name": "/"}}, "users": users, "permissions": permissions}
}

// hash is RabbitMQ's hash of a password.
func hash(password string) string {
	salt := []byte("salt")
	sum := sha256.Sum256(append(salt, password...))
	return base64.StdEncoding.EncodeToString(append(salt, sum[:]...))
}

// listen is Erlang that opens the listeners with TLS. Those of the settings have one certificate between
// them.
func (b *Broker) listen() string {
	var code strings.Builder
	for _, l := range b.opts.Listeners {
		tls := fmt.Sprintf("{certfile,%q},{keyfile,%q}", b.Path(l.Name+".crt"), b.Path(l.Name+".key"))
		if l.ClientCAPEM != "" {
			tls += fmt.Sprintf(",{cacertfile,%q},{verify,verify_peer},{fail_if_no_peer_cert,true}", b.Path(l.Name+".ca"))
		}
		fmt.Fprintf(&code, "rabbit_networking:start_ssl_listener({\"127.0.0.1\",%d}, [%s], 1), ", b.ports[l.Name], tls)
	}
	return code.String() + "ok."
}
