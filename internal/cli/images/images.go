// Package images has the verbs of "fuse image" reach the hosts of a server.
package images

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct {
	kit.Tools
	hosts []string
	all   bool
}

// Attach gives verbs that work on this machine's data directory the flags
// --host and --all-hosts, by which they work on a server's hosts instead.
func Attach(cmd *cobra.Command, t kit.Tools) {
	for _, c := range cmd.Commands() {
		a := &app{Tools: t}
		remote := map[string]func(*cobra.Command, []string) error{
			"ls": a.list, "pull": a.pull, "rm": a.remove, "prune": a.prune,
		}[c.Name()]
		if remote == nil {
			continue
		}
		c.Flags().StringSliceVar(&a.hosts, "host", nil, "work on this `host` of the server instead of this machine; may be repeated")
		c.Flags().BoolVar(&a.all, "all-hosts", false, "work on all active hosts of the server instead of this machine")
		_ = c.RegisterFlagCompletionFunc("host", t.Hosts)
		local := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			switch {
			case a.all && len(a.hosts) > 0:
				return a.Usage("give either --host or --all-hosts")
			case a.all || len(a.hosts) > 0:
				return remote(cmd, args)
			}
			return local(cmd, args)
		}
	}
}

func (a *app) images() (client.Images, error) {
	api, err := a.Server()
	return client.Images{API: api}, err
}

func (a *app) list(cmd *cobra.Command, _ []string) error {
	format, err := a.ListFormat()
	if err != nil {
		return err
	}
	api, err := a.images()
	if err != nil {
		return err
	}
	all, err := api.List(cmd.Context())
	if err != nil {
		return err
	}
	if !a.all {
		for _, h := range a.hosts {
			if _, err := api.API.Host(cmd.Context(), h); err != nil {
				return err
			}
		}
		all.Images = onHosts(all.Images, a.hosts)
	}
	switch format {
	case "json":
		return a.PrintJSON(all)
	case "name":
		for _, i := range all.Images {
			fmt.Fprintln(a.Out, a.Cell(i.Name))
		}
		return nil
	}
	rows := make([][]string, 0, len(all.Images))
	for _, i := range all.Images {
		digest := i.Digest[:min(19, len(i.Digest))]
		rows = append(rows, []string{i.Name, strconv.FormatInt(i.DiskBytes>>20, 10) + " MB", strconv.Itoa(i.InUse), digest, strings.Join(i.Hosts, ",")})
	}
	for _, u := range all.Unseen {
		a.Progress("host %s could not be seen: %s", a.Cell(u.HostID), a.Cell(u.Error.Message))
	}
	return a.Table(a.Out, []string{"NAME", "DISK", "IN USE", "DIGEST", "HOSTS"}, rows)
}

func onHosts(list []gen.HeldImage, hosts []string) []gen.HeldImage {
	want := map[string]bool{}
	for _, h := range hosts {
		want[h] = true
	}
	out := []gen.HeldImage{}
	for _, i := range list {
		for _, h := range i.Hosts {
			if want[h] {
				out = append(out, i)
				break
			}
		}
	}
	return out
}

func (a *app) pull(cmd *cobra.Command, args []string) error {
	api, err := a.images()
	if err != nil {
		return err
	}
	var following sync.WaitGroup
	ctx, stop := context.WithCancel(cmd.Context())
	following.Go(func() { a.follow(ctx, api, args[0]) })
	out, err := api.Pull(cmd.Context(), args[0], a.hosts)
	stop()
	following.Wait()
	if err != nil {
		return err
	}
	return a.outcomes(out, func(o gen.ImageOutcome) string { return o.Digest })
}

func (a *app) remove(cmd *cobra.Command, args []string) error {
	force, err := cmd.Flags().GetBool("force")
	if err != nil {
		return err
	}
	api, err := a.images()
	if err != nil {
		return err
	}
	var errs []error
	for _, image := range args {
		out, err := api.Remove(cmd.Context(), image, a.hosts, force)
		if err == nil {
			err = a.outcomes(out, func(gen.ImageOutcome) string { return "removed" })
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *app) prune(cmd *cobra.Command, _ []string) error {
	unused, err := cmd.Flags().GetDuration("unused")
	if err != nil {
		return err
	}
	maxGB, err := cmd.Flags().GetInt64("max-gb")
	if err != nil {
		return err
	}
	api, err := a.images()
	if err != nil {
		return err
	}
	out, err := api.Prune(cmd.Context(), a.hosts, max(unused, time.Duration(0)), maxGB<<30)
	if err != nil {
		return err
	}
	return a.outcomes(out, func(o gen.ImageOutcome) string {
		return fmt.Sprintf("%d removed, %d MB freed", o.Removed, o.FreedBytes>>20)
	})
}

// outcomes prints what came of each host and fails if one of them did.
func (a *app) outcomes(out gen.ImageOutcomes, text func(gen.ImageOutcome) string) error {
	format, err := a.Format()
	if err != nil {
		return err
	}
	failed := 0
	rows := make([][]string, 0, len(out.Hosts))
	for _, o := range out.Hosts {
		said := text(o)
		if o.Error.Code != "" {
			failed++
			said = o.Error.Message
		}
		rows = append(rows, []string{o.HostID, said})
	}
	switch format {
	case "json":
		err = a.PrintJSON(out)
	default:
		err = a.Table(a.Out, []string{"HOST", "RESULT"}, rows)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d of %d hosts failed", failed, len(out.Hosts))
	}
	return err
}
