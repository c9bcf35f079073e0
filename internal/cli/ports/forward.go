package ports

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// maxConnections bounds those that are forwarded at a time; more wait.
const maxConnections = 128

func forward(t kit.Tools) *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use: "port-forward ID [LOCAL:]REMOTE...", Short: "Reach TCP ports of an environment at ports of this machine",
		Long: "port-forward listens here and passes every connection on to a port of the guest, by\n" +
			"the server: neither a published port nor a way to the host is needed. LOCAL 0 takes any\n" +
			"free port. It goes on until it is interrupted.",
		Example: "  fuse port-forward fuse-demo 8080:80\n  fuse port-forward fuse-demo 0:5432 6379",
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: t.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var wanted []mapping
			for _, arg := range args[1:] {
				m, ok := parse(arg)
				if !ok {
					return t.Usage("%q is not of the form [LOCAL:]REMOTE, with ports from 1 to 65535", arg)
				}
				wanted = append(wanted, m)
			}
			api, err := t.Server()
			if err != nil {
				return err
			}
			// A mistyped id shows now and not with the first connection.
			if _, err := api.Get(cmd.Context(), args[0]); err != nil {
				return err
			}
			f := &forwarder{t: t, g: client.NewGuest(api), env: args[0], open: make(chan struct{}, maxConnections)}
			return f.run(cmd.Context(), address, wanted)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "`address` of this machine to listen at")
	return cmd
}

type mapping struct{ local, remote int }

func parse(arg string) (m mapping, ok bool) {
	local, remote, both := strings.Cut(arg, ":")
	if !both {
		remote = local
	}
	var err, err2 error
	m.local, err = strconv.Atoi(local)
	m.remote, err2 = strconv.Atoi(remote)
	return m, err == nil && err2 == nil && m.local >= 0 && m.local <= 65535 && m.remote >= 1 && m.remote <= 65535
}

// forwarder passes connections on to one environment.
type forwarder struct {
	t    kit.Tools
	g    client.Guest
	env  string
	open chan struct{} // a token for each connection under way
}

// run serves until ctx ends, which is no error.
func (f *forwarder) run(ctx context.Context, address string, wanted []mapping) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving sync.WaitGroup
	defer serving.Wait()
	for _, m := range wanted {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(m.local)))
		if err != nil {
			cancel(err)
			return err
		}
		context.AfterFunc(ctx, func() { _ = l.Close() })
		f.t.Progress("forwarding %s to port %d of %s", l.Addr(), m.remote, f.t.Cell(f.env))
		serving.Go(func() { cancel(f.serve(ctx, l, m.remote)) })
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (f *forwarder) serve(ctx context.Context, l net.Listener, remote int) error {
	var passing sync.WaitGroup
	defer passing.Wait()
	for {
		select {
		case f.open <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		local, err := l.Accept()
		if err != nil {
			<-f.open
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		passing.Go(func() {
			defer func() { <-f.open }()
			if err := f.pass(ctx, local, remote); err != nil && ctx.Err() == nil {
				f.t.Progress("connection to port %d: %v", remote, err)
			}
		})
	}
}

// pass joins one local connection to the guest's. Each direction ends by
// itself; a cut of either ends both.
func (f *forwarder) pass(ctx context.Context, local net.Conn, remote int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = local.Close() })()
	defer func() { _ = local.Close() }()
	far, err := f.g.DialPort(ctx, f.env, remote)
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()
	var sending sync.WaitGroup
	sending.Go(func() {
		_, err := io.Copy(onlyWriter{far}, local)
		if err == nil {
			err = far.CloseWrite()
		}
		if err != nil {
			cancel()
		}
	})
	_, err = io.Copy(local, onlyReader{far})
	if half, ok := local.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil {
		cancel()
	}
	sending.Wait()
	if errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) {
		return nil // the local end has left
	}
	return err
}

// The two hide what else an end can do: io.Copy would use it.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
