// Package hostlife holds the verbs of a host's life: drain, label, repin and
// metrics, and the tokens with which hosts join.
package hostlife

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Commands are the verbs below "fuse host".
func Commands(t kit.Tools) []*cobra.Command {
	a := &app{t}
	return []*cobra.Command{a.drain(), a.label(), a.repin(), a.metrics(), a.joinToken()}
}

func (a *app) hosts() (client.Hosts, error) {
	api, err := a.Server()
	return client.Hosts{API: api}, err
}

// done prints what a verb that answers with nothing was done to.
func (a *app) done(id string) error {
	format, err := a.Format()
	if err != nil {
		return err
	}
	if format == "json" {
		return a.PrintJSON(map[string]string{"id": id})
	}
	fmt.Fprintln(a.Out, a.Cell(id))
	return nil
}

func (a *app) drain() *cobra.Command {
	var grace, deadline time.Duration
	var cancel, wait bool
	cmd := &cobra.Command{
		Use: "drain ID", Short: "Empty a host", Args: cobra.ExactArgs(1), ValidArgsFunction: a.Hosts,
		Long: "drain stops placing environments on a host and empties it: each is moved if that can\n" +
			"be done, otherwise its services are stopped and it is ended after --grace. What is\n" +
			"left at --deadline is ended whatever it is doing. The host is cordoned in the end.\n" +
			"It goes on when this command ends, and when the server starts anew; --cancel stops\n" +
			"it, which brings nothing back that has begun to drain.",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.hosts()
			if err != nil {
				return err
			}
			flags := cmd.Flags()
			if cancel {
				if flags.Changed("grace") || flags.Changed("deadline") || wait {
					return a.Usage("--cancel stands alone")
				}
				if err := h.CancelDrain(cmd.Context(), args[0]); err != nil {
					return err
				}
				return a.done(args[0])
			}
			var seconds *int64
			if flags.Changed("grace") {
				seconds = new(int64(grace.Round(time.Second) / time.Second))
			}
			if flags.Changed("deadline") && deadline < time.Second {
				return a.Usage("--deadline %s is less than a second", deadline)
			}
			if err := h.Drain(cmd.Context(), args[0], seconds, int64(deadline.Round(time.Second)/time.Second)); err != nil {
				return err
			}
			if wait {
				if err := a.watch(cmd.Context(), h, args[0]); err != nil {
					return err
				}
			}
			return a.done(args[0])
		},
	}
	f := cmd.Flags()
	f.DurationVar(&grace, "grace", 0, "`time` from the end of an environment's own drain to its end (default 30s)")
	f.DurationVar(&deadline, "deadline", 0, "`time` after which what is left is ended (default 30m)")
	f.BoolVar(&cancel, "cancel", false, "stop the drain that is under way")
	f.BoolVar(&wait, "wait", false, "wait until the host is empty")
	return cmd
}

// watchEvery is how often a drain that is waited for is looked at.
const watchEvery = time.Second

// watch waits until a host is not being drained any more.
func (a *app) watch(ctx context.Context, h client.Hosts, id string) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := -1
	for {
		now, err := h.Host(ctx, id)
		if err != nil {
			return err
		}
		switch {
		case now.State == "draining" && now.Drain.Left != last:
			last = now.Drain.Left
			a.Progress("%d of %d environments are left", last, now.Drain.Total)
		case now.State == "draining":
		case now.Allocated.VMCount > 0:
			return fmt.Errorf("the drain of host %s was cancelled; %d environments are left", id, now.Allocated.VMCount)
		default:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (a *app) label() *cobra.Command {
	return &cobra.Command{
		Use: "label ID KEY=VALUE... KEY-...", Short: "Set labels of a host, or remove them", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.Hosts, //nolint:mnd // the host and one label
		RunE: func(cmd *cobra.Command, args []string) error {
			set := map[string]string{}
			var remove []string
			for _, arg := range args[1:] {
				key, value, isSet := strings.Cut(arg, "=")
				gone, isGone := strings.CutSuffix(arg, "-")
				switch {
				case isSet && key != "":
					set[key] = value
				case !isSet && isGone && gone != "":
					remove = append(remove, gone)
				default:
					return a.Usage("%q is neither KEY=VALUE nor KEY-", arg)
				}
			}
			h, err := a.hosts()
			if err != nil {
				return err
			}
			if err := h.Label(cmd.Context(), args[0], set, remove); err != nil {
				return err
			}
			return a.done(args[0])
		},
	}
}

func (a *app) repin() *cobra.Command {
	var fingerprint string
	cmd := &cobra.Command{
		Use: "repin ID", Short: "Accept another certificate of a host", Args: cobra.ExactArgs(1), ValidArgsFunction: a.Hosts,
		Long: "repin accepts the certificate that a host shows now. Without --cert-sha256 the host\nhas to prove over it that it has the host's token, which is not sent. Either way it\nhas to be the machine and data directory that were registered.",
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.hosts()
			if err != nil {
				return err
			}
			if err := h.Repin(cmd.Context(), args[0], fingerprint); err != nil {
				return err
			}
			return a.done(args[0])
		},
	}
	cmd.Flags().StringVar(&fingerprint, "cert-sha256", "", "`fingerprint` of the certificate, as 'fuse hostd' prints it")
	return cmd
}

func (a *app) metrics() *cobra.Command {
	return &cobra.Command{
		Use: "metrics ID", Short: "Show the figures of a host's agent", Args: cobra.ExactArgs(1), ValidArgsFunction: a.Hosts,
		Long: "metrics prints what the agent of a host exports, in the Prometheus text format.",
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			h, err := a.hosts()
			if err != nil {
				return err
			}
			text, err := h.Metrics(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return a.PrintJSON(map[string]string{"id": args[0], "metrics": string(text)})
			}
			_, err = a.Out.Write(text)
			return err
		},
	}
}

func (a *app) joinToken() *cobra.Command {
	var req gen.CreateJoinToken
	var expires time.Duration
	var labels []string
	cmd := &cobra.Command{
		Use: "join-token", Short: "Make a token with which hosts register themselves", Args: cobra.NoArgs,
		Long: "join-token prints a token for 'fuse hostd --join URL --join-token TOKEN'. It is shown\n" +
			"this once: what the server keeps can check it and not be used in its place.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			if expires != 0 && expires < time.Second {
				return a.Usage("--expires %s is less than a second", expires)
			}
			req.ExpiresInSeconds = int64(expires / time.Second)
			for _, l := range labels {
				k, v, ok := strings.Cut(l, "=")
				if !ok || k == "" {
					return a.Usage("--label %q is not KEY=VALUE", l)
				}
				if req.Labels == nil {
					req.Labels = map[string]string{}
				}
				req.Labels[k] = v
			}
			h, err := a.hosts()
			if err != nil {
				return err
			}
			made, err := h.CreateJoinToken(cmd.Context(), req)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.PrintJSON(made)
			}
			a.Progress("for %d hosts, until %s; on the host: fuse hostd --join URL --join-token-file FILE", made.Uses, made.ExpiresAt.Format(time.RFC3339))
			fmt.Fprintln(a.Out, a.Cell(made.Token))
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&req.Uses, "uses", 0, "how many hosts may join with it (default 1)")
	f.DurationVar(&expires, "expires", 0, "`time` that it counts for, up to 720h (default 1h)")
	f.StringVar(&req.HostID, "host-id", "", "the only host `id` that it registers")
	f.StringVar(&req.Region, "region", "", "region of the hosts that join with it")
	f.StringArrayVar(&labels, "label", nil, "placement label of the hosts that join with it, `k=v` (repeatable)")
	cmd.AddCommand(a.joinTokens(), a.revokeJoinToken())
	return cmd
}

func (a *app) joinTokens() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List join tokens", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.ListFormat()
			if err != nil {
				return err
			}
			h, err := a.hosts()
			if err != nil {
				return err
			}
			list, err := h.JoinTokens(cmd.Context())
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.PrintJSON(list)
			case "name":
				for _, t := range list.JoinTokens {
					fmt.Fprintln(a.Out, a.Cell(t.ID))
				}
				return nil
			}
			rows := make([][]string, 0, len(list.JoinTokens))
			for _, t := range list.JoinTokens {
				rows = append(rows, []string{t.ID, fmt.Sprintf("%d/%d", len(t.Hosts), t.Uses), t.ExpiresAt.Format(time.RFC3339), t.CreatedBy, strings.Join(t.Hosts, " ")})
			}
			return a.Table(a.Out, []string{"ID", "USED", "EXPIRES", "BY", "HOSTS"}, rows)
		},
	}
}

func (a *app) revokeJoinToken() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID", Aliases: []string{"remove", "revoke"}, Short: "End a join token", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.hosts()
			if err != nil {
				return err
			}
			if err := h.RevokeJoinToken(cmd.Context(), args[0]); err != nil {
				return err
			}
			return a.done(args[0])
		},
	}
}
