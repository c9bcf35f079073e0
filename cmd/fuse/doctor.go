package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/hostd/capture/uffd"
	"github.com/fusevm/fuse/internal/hostd/doctor"
	"github.com/fusevm/fuse/internal/hostd/qemu"
)

// doctorRun is one run of fuse doctor.
type doctorRun struct {
	streams     cli.Streams
	dir, listen string
	images      imageOptions
}

func doctorCmd(streams cli.Streams) *cobra.Command {
	d := &doctorRun{streams: streams}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check this machine, and that its servers are reached, and say what to do", GroupID: "ops", Args: cobra.NoArgs,
		Long: "doctor looks at what environments need of this machine: it boots a guest in order to\n" +
			"know whether KVM works, and tries the address of every server that the command line\n" +
			"knows. It changes nothing. The exit code is 1 if a check failed.",
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&d.dir, "data-dir", datadir.Default(), "`directory` of the host's data, which need not be there yet")
	f.StringVar(&d.listen, "listen", "127.0.0.1:8080", "`address` at which the server is to listen")
	d.images.register(f)
	return cmd
}

func (d *doctorRun) run(cmd *cobra.Command) error {
	format, err := cli.ListFormat(cmd)
	if err != nil {
		return err
	}
	checks := append(doctor.Machine(d.dir, d.listen), doctor.Accelerator(d.accelerator), doctor.LiveSnapshots(uffd.New().Works))
	found := doctor.Run(cmd.Context(), append(checks, d.servers(cmd)...), func(f doctor.Finding) {
		if format != "json" {
			d.print(f)
		}
	})
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	if format == "json" {
		if err := json.NewEncoder(d.streams.Out).Encode(map[string]any{"findings": found}); err != nil {
			return err
		}
	}
	if doctor.Worst(found) == doctor.Fail {
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

func (d *doctorRun) print(f doctor.Finding) {
	fmt.Fprintf(d.streams.Out, "%-4s  %s: %s\n", f.Level, f.Check, cli.Harmless(f.Detail))
	if f.Remedy != "" {
		fmt.Fprintf(d.streams.Out, "      %s\n", f.Remedy)
	}
}

func (d *doctorRun) accelerator(ctx context.Context) (accelerator, version, why string, err error) {
	dir, err := datadir.Open(d.dir)
	if err != nil {
		return "", "", "", err
	}
	images, err := openImages(dir, d.images)
	if err != nil {
		return "", "", "", err
	}
	return qemu.Accelerator(ctx, qemu.Config{Dir: dir.Path("host"), Images: images})
}

// servers are the checks of the servers that the configuration names and of the
// one in use, from here, where their user is.
func (d *doctorRun) servers(cmd *cobra.Command) []doctor.Check {
	path, err := cli.DefaultConfigPath()
	if named, _ := cmd.Flags().GetString("config"); named != "" {
		path, err = named, nil
	}
	var c cli.Config
	if err == nil {
		c, err = cli.LoadConfig(path)
	}
	if err != nil {
		return []doctor.Check{{Name: "contexts", Run: func(context.Context) doctor.Finding {
			return doctor.Finding{Level: doctor.Fail, Detail: err.Error()}
		}}}
	}
	used := inUse(cmd, c, os.Getenv)
	var out []doctor.Check
	for _, x := range c.Contexts {
		out = append(out, doctor.Reach("context "+x.Name, x.BaseURL, http.DefaultClient))
		if x.Name == used.Name {
			out = append(out, d.current(used)...)
		}
	}
	if _, known := c.Find(used.Name); !known && used.BaseURL != "" {
		out = append(append(out, doctor.Reach("server "+used.Name, used.BaseURL, http.DefaultClient)), d.current(used)...)
	}
	return out
}

// inUse is where commands with these flags go and as whom: flags first, then a
// context that they name, then the environment, then the current context.
func inUse(cmd *cobra.Command, c cli.Config, getenv func(string) string) cli.Context {
	flag := func(name string) string {
		value, _ := cmd.Flags().GetString(name) // "" where there is no such flag
		return value
	}
	name, base, token, file := flag("context"), flag("url"), flag("token"), flag("token-file")
	if name == "" {
		base = cmp.Or(base, getenv("FUSE_URL"))
		if token == "" && file == "" {
			token, file = getenv("FUSE_TOKEN"), getenv("FUSE_TOKEN_FILE")
		}
	}
	x, _ := c.Find(cmp.Or(name, c.CurrentContext))
	if base != "" && base != x.BaseURL {
		x = cli.Context{Name: base, BaseURL: base}
		if i := slices.IndexFunc(c.Contexts, func(x cli.Context) bool { return x.BaseURL == base }); i >= 0 {
			x = c.Contexts[i]
		}
	}
	if token != "" || file != "" {
		x.Token, x.TokenFile = token, file
	}
	return x
}

// current are the checks of what the server in use says of itself.
func (d *doctorRun) current(x cli.Context) []doctor.Check {
	token := x.Token
	if token == "" && x.TokenFile != "" {
		token, _ = readSecretFile(x.TokenFile) // without one the server says what is missing
	}
	api := func() (*client.API, error) {
		return client.New(x.BaseURL, client.Options{Token: token, UserAgent: "fuse-doctor/" + version})
	}
	return []doctor.Check{
		{Name: "hosts of " + x.Name, Run: func(ctx context.Context) doctor.Finding {
			a, err := api()
			if err != nil {
				return unasked(err)
			}
			page, err := a.Hosts(ctx, gen.ListHostsParams{})
			if err != nil {
				return unasked(err)
			}
			var dark []string
			for _, h := range page.Hosts {
				if h.Reachable != nil && !*h.Reachable {
					dark = append(dark, h.ID+" since "+h.UnreachableSince.Format(time.RFC3339))
				}
			}
			return doctor.Hosts(dark, len(page.Hosts))
		}},
		{Name: "advertised address of " + x.Name, Run: func(ctx context.Context) doctor.Finding {
			a, err := api()
			if err != nil {
				return unasked(err)
			}
			s, err := a.ServerStatus(ctx)
			if err != nil || s.Address == "" {
				return unasked(err)
			}
			return doctor.Advertised(s.Address, x.BaseURL, http.DefaultClient).Run(ctx)
		}},
		{Name: "published ports of " + x.Name, Run: func(ctx context.Context) doctor.Finding {
			a, err := api()
			if err != nil {
				return unasked(err)
			}
			page, err := a.List(ctx, gen.ListEnvironmentsParams{State: new("running"), Limit: new(200)})
			if err != nil {
				return unasked(err)
			}
			return published(ctx, page.Environments)
		}},
	}
}

// published tries a published port of each host and returns the worst finding.
func published(ctx context.Context, envs []gen.Environment) doctor.Finding {
	tried := map[string]bool{}
	worst := doctor.Finding{Level: doctor.OK, Detail: "none to try"}
	for _, e := range envs {
		for _, at := range e.Endpoints {
			if tried[e.HostID] || at.Protocol != "tcp" {
				continue
			}
			tried[e.HostID] = true
			f := doctor.Published(e.HostID, at.URL).Run(ctx)
			if len(tried) == 1 || doctor.Worst([]doctor.Finding{worst, f}) != worst.Level {
				worst = f
			}
		}
	}
	return worst
}

// unasked is the finding where a server could not be asked, which another check
// explains.
func unasked(err error) doctor.Finding {
	if err == nil {
		return doctor.Finding{Level: doctor.OK, Detail: "none"}
	}
	remedy := "the server does not answer; see what is said of its context"
	var answer *client.Error
	if errors.As(err, &answer) {
		remedy = "give a token that may read: fuse context add NAME URL --token-file FILE"
	}
	return doctor.Finding{Level: doctor.Warn, Detail: err.Error(), Remedy: remedy}
}
