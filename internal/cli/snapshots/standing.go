package snapshots

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// standing is "fuse pause" or "fuse resume".
func (a *app) standing(verb string, do func(client.Snapshots, context.Context, string) (gen.Environment, error)) *cobra.Command {
	short := map[string]string{
		"pause":  "Let environments stand still, without CPU and memory",
		"resume": "Let paused environments go on",
	}[verb]
	return &cobra.Command{
		Use: verb + " ID...", Short: short, Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.Environments(100),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			var errs []error
			for _, id := range args {
				began := time.Now()
				stop := a.follow(cmd.Context(), api, followed{standing: id, what: map[string]string{"pause": "pausing ", "resume": "resuming "}[verb] + id})
				env, err := do(api, cmd.Context(), id)
				stop()
				if err != nil {
					if errs = append(errs, err); cmd.Context().Err() != nil {
						break
					}
					continue
				}
				state := env.Activity
				if state == "" {
					state = env.State
				}
				note := ""
				if env.Paused != nil && env.Paused.KeptBytes > 0 {
					note = ", its memory takes " + kit.Bytes(float64(env.Paused.KeptBytes)) + " of its host's disk"
				}
				a.Progress("%s is %s (%s%s)", env.ID, state, time.Since(began).Round(time.Millisecond), note)
				if format == "json" {
					err = a.PrintJSON(env)
				} else {
					_, err = fmt.Fprintln(a.Out, a.Cell(env.ID))
				}
				if err != nil {
					return err
				}
			}
			return errors.Join(errs...)
		},
	}
}

// CreateFlags say what a new environment begins with, and how it stands still.
type CreateFlags struct {
	onIdle, snapshot string
	noGolden         bool
}

// Register adds the flags.
func (f *CreateFlags) Register(s *pflag.FlagSet) {
	s.StringVar(&f.onIdle, "on-idle", "", "what happens after the idle timeout: destroy (the default) or pause")
	s.StringVar(&f.snapshot, "snapshot", "", "begin with this disk `snapshot` instead of an image")
	s.BoolVar(&f.noGolden, "no-golden", false, "boot, even where the host could go on from a snapshot of a machine of this shape")
}

// Apply puts them into a request.
func (f *CreateFlags) Apply(body *gen.CreateEnvironment) {
	body.SeedSnapshotID, body.Spec.OnIdle = f.snapshot, f.onIdle
	if f.noGolden {
		body.Golden = "off"
	}
}

// Fields are what "fuse get" shows of what an environment goes on from, and of
// how it stands still.
func Fields(env gen.Environment) (fields [][2]string) {
	if p := env.Paused; p != nil {
		text := fmt.Sprintf("%s since %s, %s by %s", env.Activity, p.Since.Format(time.RFC3339), p.Reason.Rule, p.Reason.Actor)
		if p.KeptBytes > 0 {
			text += ", " + kit.Bytes(float64(p.KeptBytes)) + " kept"
		}
		if p.Progress != nil {
			text += ", " + shown(p.Progress)
		}
		fields = append(fields, [2]string{"activity", text}, [2]string{"resume error", p.Error})
	}
	fields = append(fields, [2]string{"snapshot", env.SeedSnapshotID}, [2]string{"forked from", strings.Join(env.Ancestors, " ")})
	if c := env.Certificate; c != nil {
		names := make([]string, 0, len(c.Renewed))
		for _, r := range c.Renewed {
			names = append(names, r.Name)
		}
		fields = append(fields, [2]string{"certificate", fmt.Sprintf("%s %s at %s: renewed %s", c.Cause, c.Generation, c.At.Format(time.RFC3339), strings.Join(names, ", "))})
	}
	return fields
}

// followed is work on a snapshot, by its id, or the one of an environment that is
// in a state; or the pause or resumption of the environment standing.
type followed struct {
	id, vmID, state, standing, what string
}

const followEvery = 300 * time.Millisecond

// follow shows on a terminal how far the server is, until the result is called.
func (a *app) follow(ctx context.Context, api client.Snapshots, f followed) (stop func()) {
	if !a.IsTerminal(a.Err) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		began := time.Now()
		tick := time.NewTicker(followEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				fmt.Fprint(a.Err, "\r\033[K")
				return
			case <-tick.C:
			}
			line := fmt.Sprintf("%s … %.1f s", f.what, time.Since(began).Seconds())
			if p := f.progress(ctx, api); p != nil {
				line += "  " + shown(p)
			}
			fmt.Fprint(a.Err, "\r\033[K"+a.Cell(line))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// progress asks the server; nil while it does not say.
func (f followed) progress(ctx context.Context, api client.Snapshots) *gen.SnapshotProgress {
	if f.standing != "" {
		env, err := api.API.Get(ctx, f.standing)
		if err != nil || env.Paused == nil {
			return nil
		}
		return env.Paused.Progress
	}
	if f.id != "" {
		s, err := api.Get(ctx, f.id)
		if err != nil {
			return nil
		}
		return s.Progress
	}
	list, err := api.List(ctx, gen.ListSnapshotsParams{VMID: &f.vmID, State: &f.state, Limit: new(1)})
	if err != nil || len(list.Snapshots) == 0 {
		return nil
	}
	return list.Snapshots[0].Progress
}

// shown is how far work is, with bytes and rate.
func shown(p *gen.SnapshotProgress) string {
	out := p.Phase
	switch {
	case p.TotalBytes > 0:
		out += fmt.Sprintf(" %s of %s (%d%%)", kit.Bytes(float64(p.DoneBytes)), kit.Bytes(float64(p.TotalBytes)), min(100, p.DoneBytes*100/p.TotalBytes))
	case p.DoneBytes > 0:
		out += " " + kit.Bytes(float64(p.DoneBytes))
	}
	if p.BytesPerSecond > 0 {
		out += fmt.Sprintf(", %s/s", kit.Bytes(float64(p.BytesPerSecond)))
	}
	return out
}
