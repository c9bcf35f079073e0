package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
	"github.com/fusevm/fuse/internal/cli/snapshots"
)

// createFlags are the flags of create and run, named as in the public command
// line.
type createFlags struct {
	taskID, image, region, arch, host                 string
	cpus, ramMB, storageGB, gpus                      int32
	gpuKind, gpuProfile                               string
	hugePages                                         bool
	maxRuntime, idleTimeout                           time.Duration
	labels, tags, secrets, files                      []string
	expose, limits                                    []string
	manifest, startupScript, gatewayURL, gatewayToken string
	startupTimeout                                    time.Duration
	health                                            healthFlags
	begins                                            snapshots.CreateFlags
}

func (f *createFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.taskID, "task-id", "", "the environment's `id` becomes fuse-<task id> (default: one is made)")
	s.StringVar(&f.image, "image", "", "image to boot: a name on the hosts, or an OCI `reference` such as debian:12 (default: the server's)")
	s.Int32Var(&f.cpus, "cpus", 0, "virtual CPUs (0: the server's default)")
	s.Int32Var(&f.ramMB, "ram-mb", 0, "memory in `MiB` (0: the server's default)")
	s.Int32Var(&f.storageGB, "storage-gb", 0, "root disk in `GiB` (0: the server's default)")
	s.StringVar(&f.region, "region", "", "only hosts of this region")
	s.StringVar(&f.arch, "arch", "", "only hosts of this architecture: amd64 or arm64")
	s.StringVar(&f.host, "host", "", "only this host")
	s.StringArrayVar(&f.labels, "label", nil, "only hosts with this label, `k=v` (repeatable)")
	s.StringArrayVar(&f.tags, "tag", nil, "a tag of your own, `k=v`, by which ls finds it (repeatable)")
	s.BoolVar(&f.hugePages, "huge-pages", false, "memory on huge pages: only hosts that have enough of them free")
	s.StringArrayVar(&f.limits, "limit", nil, "bound what it takes, `"+kit.LimitForm+"`: "+kit.LimitHelp+" (repeatable)")
	s.Int32Var(&f.gpus, "gpus", 0, "GPUs (not built yet: refused)")
	s.StringVar(&f.gpuKind, "gpu-kind", "", "GPU model (not built yet: refused)")
	s.StringVar(&f.gpuProfile, "gpu-profile", "", "MIG profile (not built yet: refused)")
	s.DurationVar(&f.maxRuntime, "max-runtime", 0, "age at which to end it (0: the fleet's default, 2h)")
	s.DurationVar(&f.idleTimeout, "idle-timeout", 0, "time without use after which to end it, 1m at least (0: the fleet's default, none)")
	f.begins.Register(s)
	s.StringVar(&f.manifest, "manifest", "", "manifest: JSON, or @`file`")
	s.StringArrayVar(&f.secrets, "secret", nil, "a secret, `k=v`, k=@file, or k alone to take it from the environment; the guest reads it in /fuse/secrets.json (repeatable)")
	s.StringArrayVar(&f.files, "file", nil, "a file of the guest, `/PATH=@FILE` or /PATH=text, there before anything runs (repeatable)")
	s.StringVar(&f.startupScript, "startup-script", "", "shell script to run before it counts as running: text, or @`file`")
	s.DurationVar(&f.startupTimeout, "startup-script-timeout", 0, "bound of the startup script (default 30s, at most 55s)")
	s.StringArrayVar(&f.expose, "expose", nil, "publish a `port` of the guest at its host: "+kit.ExposeForm+" (repeatable)")
	f.health.register(s)
	s.StringVar(&f.gatewayURL, "gateway-url", "", "kept for the guest agent, which has no use for it yet")
	s.StringVar(&f.gatewayToken, "gateway-token", "", "kept, sealed, for the guest agent, which has no use for it yet")
}

// textArg reads a flag that is text or @file.
func textArg(v string) (string, error) {
	data, err := kit.Text(v)
	if err != nil {
		return "", usagef("%w", err)
	}
	return string(data), nil
}

// spec is the machine asked for. Zero means the server's default; anything
// else, negative too, is sent for the server to judge, so that every client
// hears the same words.
func (f *createFlags) spec() (gen.Spec, error) {
	labels, err := pairs("--label", f.labels, nil)
	if err != nil {
		return gen.Spec{}, err
	}
	tags, err := pairs("--tag", f.tags, nil)
	if err != nil {
		return gen.Spec{}, err
	}
	limits, err := kit.ParseLimits(f.limits)
	if err != nil {
		return gen.Spec{}, usagef("%w", err)
	}
	if *limits == (gen.ResourceLimits{}) {
		limits = nil
	}
	return gen.Spec{
		Limits: limits, CPUs: f.cpus, RAMMB: f.ramMB, StorageGB: f.storageGB, Region: f.region, Arch: f.arch, HostID: f.host, Image: f.image,
		GPUs: f.gpus, GPUKind: f.gpuKind, GPUProfile: f.gpuProfile, HugePages: f.hugePages, Labels: labels, Tags: tags,
		MaxRuntimeSeconds: kit.WholeSeconds(f.maxRuntime), IdleTimeoutSeconds: kit.WholeSeconds(f.idleTimeout),
	}, nil
}

func (f *createFlags) body(getenv func(string) string) (gen.CreateEnvironment, error) {
	body := gen.CreateEnvironment{
		TaskID: f.taskID, StartupScriptTimeoutSeconds: kit.WholeSeconds(f.startupTimeout),
		GatewayURL: f.gatewayURL, GatewayToken: f.gatewayToken,
	}
	manifest, err := textArg(f.manifest)
	if err != nil {
		return body, err
	}
	body.ManifestInline = []byte(manifest)
	if body.Healthcheck, err = f.health.body(); err != nil {
		return body, err
	}
	if body.StartupScript, err = textArg(f.startupScript); err != nil {
		return body, err
	}
	if body.Secrets, err = pairs("--secret", f.secrets, getenv); err != nil {
		return body, err
	}
	if body.Expose, err = kit.ParseExpose(f.expose); err != nil {
		return body, usagef("%w", err)
	}
	if body.Files, err = kit.ReadFiles(f.files); err != nil {
		return body, usagef("%w", err)
	}
	body.Spec, err = f.spec()
	f.begins.Apply(&body)
	return body, err
}

// pairs reads k=v arguments. With getenv, a bare k takes its value from the
// environment and k=@file from a file.
func pairs(flag string, args []string, getenv func(string) string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		switch {
		case k == "" || (!ok && getenv == nil):
			return nil, usagef("%s %q is not of the form k=v", flag, k)
		case !ok:
			if v = getenv(k); v == "" {
				return nil, usagef("%s %s: the environment variable %s is not set", flag, k, k)
			}
		case getenv != nil:
			var err error
			if v, err = textArg(v); err != nil {
				return nil, err
			}
		}
		if _, twice := out[k]; twice {
			return nil, usagef("%s %q is given twice", flag, k)
		}
		out[k] = v
	}
	return out, nil
}

func createCmd(a *app) *cobra.Command {
	var f createFlags
	var noWait bool
	cmd := &cobra.Command{
		Use: "create", Short: "Create an environment and wait until it runs", Args: cobra.NoArgs,
		Long: "create prints the id of the new environment. When it is interrupted the server\n" +
			"goes on: 'fuse ls' shows the environment and 'fuse rm' removes it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			env, err := a.create(cmd.Context(), &f, client.CreateOptions{IdempotencyKey: rand.Text(), Async: noWait})
			if err != nil {
				if cmd.Context().Err() != nil {
					a.progressf("the server goes on with it: 'fuse ls' shows it, 'fuse rm' removes it")
				}
				return err
			}
			if format == "json" {
				return a.printJSON(env)
			}
			fmt.Fprintln(a.Streams.Out, cell(env.ID))
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return once the request is durable; follow it with 'fuse events'")
	return cmd
}

// create makes an environment and tells how it came up.
func (a *app) create(ctx context.Context, f *createFlags, opts client.CreateOptions) (env gen.Environment, err error) {
	body, err := f.body(a.Getenv)
	if err != nil {
		return env, err
	}
	api, err := a.server()
	if err != nil {
		return env, err
	}
	spin := a.spin("creating")
	start := time.Now()
	env, err = api.Create(ctx, body, opts)
	spin.stop()
	switch {
	case err != nil:
		return env, err
	case opts.Async:
		a.progressf("%s is being created", env.ID)
		return env, nil
	}
	for _, s := range bootSteps(env) {
		a.progressf("  %s", s)
	}
	a.progressf("%s is running (%s)", env.ID, seconds(time.Since(start)))
	return env, nil
}

// bootSteps renders how an environment came up, a step a line.
func bootSteps(env gen.Environment) []string {
	if env.Boot == nil {
		return nil
	}
	var out []string
	for _, s := range env.Boot.Steps {
		out = append(out, fmt.Sprintf("%-18s %s", s.Step, seconds(time.Duration(s.TookMs*float64(time.Millisecond)))))
	}
	return out
}
