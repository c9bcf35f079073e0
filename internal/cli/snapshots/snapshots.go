// Package snapshots is the verbs that capture environments, put them back, fork
// them, and let them stand still.
package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
	"github.com/fusevm/fuse/internal/fleet"
)

// Commands are "fuse snapshot", "fuse fork", "fuse pause" and "fuse resume".
func Commands(t kit.Tools) []*cobra.Command {
	a := &app{t}
	noun := &cobra.Command{
		Use: "snapshot", Aliases: []string{"snapshots", "snap"}, Short: "Take snapshots of environments, put them back, list and delete",
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	noun.AddCommand(a.create(), a.list(), a.get(), a.restore(), a.remove())
	return []*cobra.Command{noun, a.fork(), a.standing("pause", client.Snapshots.Pause), a.standing("resume", client.Snapshots.Resume)}
}

type app struct{ kit.Tools }

func (a *app) api() (client.Snapshots, error) {
	api, err := a.Server()
	return client.Snapshots{API: api}, err
}

func (a *app) create() *cobra.Command {
	var req gen.CreateSnapshot
	var name string
	var keep time.Duration
	var metadata []string
	cmd := &cobra.Command{
		Use: "create ID", Aliases: []string{"take"}, Short: "Take a snapshot of a running environment",
		Long: "create prints the id of the snapshot once it is ready. The environment runs on. With\n" +
			"--live its memory is in it too, so that what runs goes on where it was. When it is\n" +
			"interrupted the server goes on.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			if keep < 0 {
				return a.Usage("--keep %s is less than zero", keep)
			}
			req.RetentionSeconds, req.Metadata = kit.WholeSeconds(keep), map[string]string{}
			for _, m := range metadata {
				k, v, ok := strings.Cut(m, "=")
				if !ok || k == "" {
					return a.Usage("--metadata %q is not of the form k=v", m)
				}
				req.Metadata[k] = v
			}
			if name != "" {
				req.Metadata["name"] = name
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			stop := a.follow(cmd.Context(), api, followed{vmID: args[0], what: "taking a snapshot", state: "creating"})
			snap, err := api.Take(cmd.Context(), args[0], req)
			stop()
			if err != nil {
				if cmd.Context().Err() != nil {
					a.Progress("the server goes on with it: 'fuse snapshot ls --vm %s' shows it", args[0])
				}
				return err
			}
			a.Progress("%s: %s", snap.ID, written(snap))
			if format == "json" {
				return a.PrintJSON(snap)
			}
			_, err = fmt.Fprintln(a.Out, a.Cell(snap.ID))
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&req.Live, "live", false, "its memory too")
	f.StringVar(&req.Comment, "comment", "", "a note")
	f.StringVar(&name, "name", "", "a `name` to find it by")
	f.StringVar(&req.Mode, "mode", "", "manual (the default), auto, or build, which neither retention nor quota touches")
	f.DurationVar(&keep, "keep", 0, "how long it is kept (0: the server's)")
	f.StringArrayVar(&metadata, "metadata", nil, "something of your own to keep with it, `k=v` (repeatable)")
	return cmd
}

// written says what a snapshot is and what it cost.
func written(s gen.Snapshot) string {
	out := fmt.Sprintf("%s, %s in %s", s.Kind, kit.Bytes(float64(s.SizeBytes)), milliseconds(s.TookMs))
	if s.TookMs > 0 && s.SizeBytes > 0 {
		out += fmt.Sprintf(" (%s/s)", kit.Bytes(float64(s.SizeBytes)/s.TookMs*1000))
	}
	if s.StopMs > 0 || s.FreezeMs > 0 {
		out += fmt.Sprintf("; it stood still for %s, its processes for %s", milliseconds(s.StopMs), milliseconds(s.FreezeMs))
	}
	return out
}

func milliseconds(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	if d < time.Second {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

func (a *app) list() *cobra.Command {
	var vm, state, mode, name, layer, arch string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List snapshots, the newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			q := gen.ListSnapshotsParams{
				VMID: given(vm), State: given(state), Mode: given(mode), Name: given(name), LayerKey: given(layer), Arch: given(arch), Limit: new(200),
			}
			all := gen.SnapshotList{Snapshots: []gen.Snapshot{}}
			for {
				page, err := api.List(cmd.Context(), q)
				if err != nil {
					return err
				}
				all.Snapshots = append(all.Snapshots, page.Snapshots...)
				if page.NextCursor == "" {
					break
				}
				q.Cursor = &page.NextCursor
			}
			rows := make([][]string, 0, len(all.Snapshots))
			for _, s := range all.Snapshots {
				rows = append(rows, []string{
					s.ID, s.VMID, s.State, cmp.Or(s.Kind, "disk"), s.Mode, kit.Bytes(float64(s.SizeBytes)), cmp.Or(s.HostID, "-"),
					a.Age(time.Now(), s.CreatedAt), cmp.Or(s.Name, s.Comment, "-"),
				})
			}
			return a.PrintList(all, []string{"ID", "ENVIRONMENT", "STATE", "KIND", "MODE", "SIZE", "HOST", "AGE", "NOTE"}, rows)
		},
	}
	f := cmd.Flags()
	f.StringVar(&vm, "vm", "", "only of this environment")
	f.StringVar(&state, "state", "", "only in this state: creating, ready, restoring, deleting or error")
	f.StringVar(&mode, "mode", "", "only of this mode")
	f.StringVar(&name, "name", "", "only of this name")
	f.StringVar(&layer, "layer-key", "", "only this layer")
	f.StringVar(&arch, "arch", "", "only of this architecture")
	return cmd
}

func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (a *app) get() *cobra.Command {
	return &cobra.Command{
		Use: "get SNAPSHOT", Aliases: []string{"inspect"}, Short: "Show one snapshot", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			s, err := api.Get(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case format == "json":
				return a.PrintJSON(s)
			case format == "name":
				_, err := fmt.Fprintln(a.Out, a.Cell(s.ID))
				return err
			}
			return a.Sheet(a.Out, a.fields(s))
		},
	}
}

func (a *app) fields(s gen.Snapshot) [][2]string {
	fields := [][2]string{
		{"id", s.ID},
		{"environment", s.VMID},
		{"state", s.State},
		{"kind", cmp.Or(s.Kind, "disk")},
		{"mode", s.Mode},
		{"owner", s.Owner},
		{"host", s.HostID},
		{"size", kit.Bytes(float64(s.SizeBytes))},
		{"digest", s.Digest},
		{"parent", s.ParentSnapshotID},
		{"name", s.Name},
		{"comment", s.Comment},
		{"error", s.LastError},
		{"created", s.CreatedAt.Format(time.RFC3339) + " (" + a.Age(time.Now(), s.CreatedAt) + " ago)"},
	}
	if s.StopMs > 0 || s.FreezeMs > 0 {
		fields = append(fields, [2]string{"stood still", fmt.Sprintf("%s, its processes %s", milliseconds(s.StopMs), milliseconds(s.FreezeMs))})
	}
	if !s.RetentionUntil.IsZero() {
		fields = append(fields, [2]string{"kept until", s.RetentionUntil.Format(time.RFC3339)})
	}
	if s.Ephemeral {
		fields = append(fields, [2]string{"goes", "with the last of the forks that it was taken for"})
	}
	for _, k := range []string{"driver", "driver_version", "machine", "accelerator", "cpu_model"} {
		if v := s.Machine[k]; v != "" {
			fields = append(fields, [2]string{strings.ReplaceAll(k, "_", " "), v})
		}
	}
	if p := s.Progress; p != nil {
		fields = append(fields, [2]string{"progress", shown(p)})
	}
	return fields
}

func (a *app) restore() *cobra.Command {
	return &cobra.Command{
		Use: "restore SNAPSHOT", Short: "Put the environment of a snapshot back to it",
		Long: "restore returns once the guest has answered. A disk snapshot boots anew, a live one goes\n" +
			"on from its memory. When it fails the environment is as it was before.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			began := time.Now()
			stop := a.follow(cmd.Context(), api, followed{id: args[0], what: "restoring"})
			err = api.Restore(cmd.Context(), args[0])
			stop()
			if err != nil {
				if cmd.Context().Err() != nil {
					a.Progress("the server goes on with it")
				}
				return err
			}
			a.Progress("restored in %s", time.Since(began).Round(time.Millisecond))
			return nil
		},
	}
}

func (a *app) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm SNAPSHOT...", Aliases: []string{"delete"}, Short: "Delete snapshots and their bytes", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.api()
			if err != nil {
				return err
			}
			return a.removeAll(cmd.Context(), api, args)
		},
	}
}

// removeAll deletes what can be. One on which another of them builds goes after
// it, in whichever order they were named.
func (a *app) removeAll(ctx context.Context, api client.Snapshots, ids []string) error {
	var failed []error
	for {
		var needed []string
		var errs []error
		for _, id := range ids {
			err := api.Remove(ctx, id)
			var answer *client.Error
			switch {
			case err == nil:
				fmt.Fprintln(a.Out, a.Cell(id))
			case ctx.Err() != nil:
				return err
			case errors.As(err, &answer) && answer.Code == string(fleet.CodeConflict):
				needed, errs = append(needed, id), append(errs, err)
			default:
				failed = append(failed, err)
			}
		}
		if len(needed) == 0 || len(needed) == len(ids) {
			return errors.Join(append(failed, errs...)...)
		}
		ids = needed
	}
}

func (a *app) fork() *cobra.Command {
	var req gen.ForkEnvironment
	cmd := &cobra.Command{
		Use: "fork ID", Short: "Make environments that go on from where another one is",
		Long: "fork prints the ids of the new environments. Each has credentials, an identity and a\n" +
			"place of its own. From the disk they boot; with --live what runs goes on in each of them.",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			if req.Count < 1 {
				return a.Usage("--count %d is less than 1", req.Count)
			}
			api, err := a.api()
			if err != nil {
				return err
			}
			began := time.Now()
			stop := a.follow(cmd.Context(), api, followed{id: req.ReuseSnapshotID, vmID: args[0], what: "forking", state: "creating"})
			out, err := api.Fork(cmd.Context(), args[0], req)
			stop()
			if err != nil {
				if cmd.Context().Err() != nil {
					a.Progress("the server goes on with it: 'fuse ls' shows them")
				}
				return err
			}
			for _, f := range out.Failures {
				fmt.Fprintf(a.Err, "one could not be made: %s\n", a.Cell(f.Message))
			}
			a.Progress("%d running (%s)", len(out.Environments), time.Since(began).Round(10*time.Millisecond))
			if format == "json" {
				err = a.PrintJSON(out)
			} else {
				for _, env := range out.Environments {
					fmt.Fprintln(a.Out, a.Cell(env.ID))
				}
			}
			if err == nil && len(out.Failures) > 0 {
				err = fmt.Errorf("%d of %d forks could not be made", len(out.Failures), req.Count)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&req.Count, "count", 1, "how many, at most 64")
	f.BoolVar(&req.Live, "live", false, "from its memory too")
	f.StringVar(&req.ReuseSnapshotID, "snapshot", "", "from this `snapshot` of it (default: one is taken, which goes with the last of them)")
	f.StringVar(&req.Comment, "comment", "", "a note on the snapshot that is taken")
	return cmd
}
