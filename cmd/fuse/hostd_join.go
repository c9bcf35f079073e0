package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/hostd/join"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
)

// joinFlags are how a host agent registers itself.
type joinFlags struct {
	server, token, tokenFile string
	id, advertise, region    string
	labels                   []string
}

func (f *joinFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.server, "join", "", "`URL` of a server to register this host with")
	s.StringVar(&f.token, "join-token", "", "token from 'fuse host join-token' (visible to other users of this machine: prefer --join-token-file)")
	s.StringVar(&f.tokenFile, "join-token-file", "", "`file` that holds the join token")
	s.StringVar(&f.id, "host-id", "", "`id` to join under (default: this machine's name)")
	s.StringVar(&f.advertise, "advertise", "", "`URL` at which the server reaches this agent (default: from --listen)")
	s.StringVar(&f.region, "region", "", "region to join with")
	s.StringArrayVar(&f.labels, "label", nil, "placement label to join with, `k=v` (repeatable)")
}

// config is what the host joins with; nil without --join. The rest is known
// once the agent listens.
func (f *joinFlags) config() (*join.Config, error) {
	usage := func(format string, args ...any) error {
		return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf(format, args...)}
	}
	if f.server == "" {
		if f.token != "" || f.tokenFile != "" || f.id != "" || f.advertise != "" || f.region != "" || len(f.labels) > 0 {
			return nil, usage("--join-token, --host-id, --advertise, --region and --label are for --join URL")
		}
		return nil, nil //nolint:nilnil // no join is no error
	}
	c := &join.Config{Server: f.server}
	var err error
	if c.Token, err = givenSecret("--join-token", f.token, f.tokenFile); err != nil {
		return nil, err
	}
	if c.Token == "" {
		return nil, usage("--join needs --join-token-file or --join-token: 'fuse host join-token' makes one")
	}
	c.Host.ID, c.Host.Region = f.id, f.region
	if c.Host.ID == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, usage("this machine's name is not known (%w): give --host-id", err)
		}
		c.Host.ID = hostIDOf(name)
	}
	for _, l := range f.labels {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, usage("--label %q is not of the form k=v", l)
		}
		if c.Host.Labels == nil {
			c.Host.Labels = map[string]string{}
		}
		c.Host.Labels[k] = v
	}
	if err := c.Check(); err != nil {
		return nil, usage("%w", err)
	}
	return c, nil
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// hostIDOf makes an id of a machine's name.
func hostIDOf(name string) string {
	id := strings.TrimLeft(notInID.ReplaceAllString(name, "-"), "._-")
	return id[:min(len(id), 63)] //nolint:mnd // as long as an id may be
}

// advertised is the URL at which the server reaches an agent that listens at
// own: where it listens on every interface, the one that leads to the server.
func (f *joinFlags) advertised(ctx context.Context, own string) (string, error) {
	if f.advertise != "" {
		return f.advertise, nil
	}
	u, err := url.Parse(own)
	if err != nil || u.Scheme == "unix" {
		return own, err
	}
	to, err := url.Parse(f.server)
	if err != nil {
		return "", err
	}
	ip := net.ParseIP(u.Hostname())
	switch {
	case ip != nil && ip.IsLoopback() && !hostwire.IsLoopback(to.Hostname()):
		return "", &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("the server %s cannot reach this agent at %s: give --listen an address of this machine, or --advertise", f.server, own)}
	case ip == nil || !ip.IsUnspecified():
		return own, nil
	}
	port := to.Port()
	if port == "" {
		port = "443"
	}
	// Nothing is sent: the kernel says which address it would send from.
	conn, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(to.Hostname(), port))
	if err != nil {
		return "", fmt.Errorf("find this machine's address on the way to %s (give --advertise): %w", f.server, err)
	}
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if err := conn.Close(); err != nil || !ok {
		return "", errors.Join(err, errors.New("this machine's address is not known: give --advertise"))
	}
	u.Host = net.JoinHostPort(local.IP.String(), u.Port())
	return u.String(), nil
}

// joins makes the host join once it serves. A host that is refused ends.
func (h *host) joins(ctx context.Context, f *joinFlags, c *join.Config, token, dir string) error {
	if c == nil {
		return nil
	}
	to, err := f.advertised(ctx, h.url)
	if err != nil {
		return err
	}
	full := *c
	full.AgentToken, full.Dir, full.Logger = token, dir, h.log
	full.Host = joinwire.Host{
		ID: c.Host.ID, Region: c.Host.Region, Labels: c.Host.Labels, URL: to, CertSHA256: h.certSHA256, RegistryID: h.agent.RegistryID(),
	}
	h.log.Info("joining", slog.String("server", c.Server), slog.String("host_id", full.Host.ID), slog.String("url", to))
	h.joining = func(ctx context.Context) error { return join.Run(ctx, full) }
	return nil
}
