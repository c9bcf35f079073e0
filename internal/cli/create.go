package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// createFlags are the flags of create and run, named as in the public command
// line.
type createFlags struct {
	taskID, image, region, arch, host string
	cpus, ramMB, storageGB            int
	gpus                              int
	gpuKind, gpuProfile               string
	maxRuntime, idleTimeout           time.Duration
	labels, secrets                   []string
	manifest, startupScript           string
	startupTimeout                    time.Duration
	gatewayURL, gatewayToken          string
}

func (f *createFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.taskID, "task-id", "", "the environment's `id` becomes fuse-<task id> (default: one is made)")
	s.StringVar(&f.image, "image", "", "root filesystem to boot (default: the server's)")
	s.IntVar(&f.cpus, "cpus", 0, "virtual CPUs (0: the server's default)")
	s.IntVar(&f.ramMB, "ram-mb", 0, "memory in `MiB` (0: the server's default)")
	s.IntVar(&f.storageGB, "storage-gb", 0, "root disk in `GiB` (0: the server's default)")
	s.StringVar(&f.region, "region", "", "only hosts of this region")
	s.StringVar(&f.arch, "arch", "", "only hosts of this architecture: amd64 or arm64")
	s.StringVar(&f.host, "host", "", "only this host")
	s.StringArrayVar(&f.labels, "label", nil, "only hosts with this label, `k=v` (repeatable)")
	s.IntVar(&f.gpus, "gpus", 0, "GPUs (not built yet: refused)")
	s.StringVar(&f.gpuKind, "gpu-kind", "", "GPU model (not built yet: refused)")
	s.StringVar(&f.gpuProfile, "gpu-profile", "", "MIG profile (not built yet: refused)")
	s.DurationVar(&f.maxRuntime, "max-runtime", 0, "end it at this age (0: the fleet's default, 2h)")
	s.DurationVar(&f.idleTimeout, "idle-timeout", 0, "end it after this long without exec (0: never; at least 1m)")
	s.StringVar(&f.manifest, "manifest", "", "manifest: JSON, or @`file`")
	s.StringArrayVar(&f.secrets, "secret", nil, "a secret for the guest, `k=v`, k=@file, or k alone to take it from the environment (repeatable)")
	s.StringVar(&f.startupScript, "startup-script", "", "shell script to run before it counts as running: text, or @`file`")
	s.DurationVar(&f.startupTimeout, "startup-script-timeout", 0, "bound of the startup script (default 30s, at most 55s)")
	s.StringVar(&f.gatewayURL, "gateway-url", "", "passed to the guest agent")
	s.StringVar(&f.gatewayToken, "gateway-token", "", "passed to the guest agent")
}

// textArg reads a flag that is text or @file.
func textArg(v string) (string, error) {
	name, isFile := strings.CutPrefix(v, "@")
	if !isFile {
		return v, nil
	}
	data, err := os.ReadFile(name) //nolint:gosec // the user names the file
	if err != nil {
		return "", usagef("%w", err)
	}
	return string(data), nil
}

func (f *createFlags) spec() (map[string]any, error) {
	spec := map[string]any{}
	put := func(k string, v any, given bool) {
		if given {
			spec[k] = v
		}
	}
	// Zero means the server's default; anything else, negative too, is sent
	// for the server to judge, so that every client hears the same words.
	put("cpus", f.cpus, f.cpus != 0)
	put("ram_mb", f.ramMB, f.ramMB != 0)
	put("storage_gb", f.storageGB, f.storageGB != 0)
	put("region", f.region, f.region != "")
	put("arch", f.arch, f.arch != "")
	put("host_id", f.host, f.host != "")
	put("image", f.image, f.image != "")
	put("gpus", f.gpus, f.gpus != 0)
	put("gpu_kind", f.gpuKind, f.gpuKind != "")
	put("gpu_profile", f.gpuProfile, f.gpuProfile != "")
	put("max_runtime_seconds", int64(f.maxRuntime/time.Second), f.maxRuntime != 0)
	put("idle_timeout_seconds", int64(f.idleTimeout/time.Second), f.idleTimeout != 0)
	labels, err := pairs("--label", f.labels, nil)
	if err != nil {
		return nil, err
	}
	put("labels", labels, len(labels) > 0)
	return spec, nil
}

func (f *createFlags) body(getenv func(string) string) (map[string]any, error) {
	spec, err := f.spec()
	if err != nil {
		return nil, err
	}
	body := map[string]any{"task_id": f.taskID, "spec": spec}
	if f.manifest != "" {
		text, err := textArg(f.manifest)
		if err != nil {
			return nil, err
		}
		body["manifest_inline"] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	if f.startupScript != "" {
		if body["startup_script"], err = textArg(f.startupScript); err != nil {
			return nil, err
		}
	}
	if f.startupTimeout != 0 {
		body["startup_script_timeout_seconds"] = int64(f.startupTimeout / time.Second)
	}
	secrets, err := pairs("--secret", f.secrets, getenv)
	if err != nil {
		return nil, err
	}
	if len(secrets) > 0 {
		body["secrets"] = secrets
	}
	if f.gatewayURL != "" {
		body["gateway_url"] = f.gatewayURL
	}
	if f.gatewayToken != "" {
		body["gateway_token"] = f.gatewayToken
	}
	return body, nil
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

// newTaskID makes a task id on the client, so that an interrupted command
// still knows what to remove.
func newTaskID(prefix string) string {
	return prefix + strings.ToLower(rand.Text())[:12]
}

func createCmd(a *app) *cobra.Command {
	var f createFlags
	var noWait bool
	cmd := &cobra.Command{
		Use: "create", Short: "Create an environment and wait until it runs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			env, raw, err := a.create(cmd.Context(), &f, noWait)
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.printJSON(raw)
			default:
				fmt.Fprintln(a.Streams.Out, env.ID)
				return nil
			}
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return once the request is durable; follow it with 'fuse events'")
	return cmd
}

// create sends the request once under an idempotency key: a repeat after a
// lost answer never makes a second environment.
func (a *app) create(ctx context.Context, f *createFlags, noWait bool) (environment, []byte, error) {
	var env environment
	body, err := f.body(a.Getenv)
	if err != nil {
		return env, nil, err
	}
	header := http.Header{"Idempotency-Key": {rand.Text()}}
	if noWait {
		header.Set("Prefer", "respond-async")
	}
	spin := a.spin("creating")
	start := time.Now()
	raw, err := a.fetch(ctx, call{method: http.MethodPost, path: environmentsPath, body: body, header: header}, &env)
	spin.stop()
	if err != nil {
		return env, nil, err
	}
	if noWait {
		a.progressf("%s is being created", env.ID)
		return env, raw, nil
	}
	for _, s := range bootSteps(env) {
		a.progressf("  %s", s)
	}
	a.progressf("%s is running (%s)", env.ID, seconds(time.Since(start)))
	return env, raw, nil
}

func runCmd(a *app) *cobra.Command {
	var f createFlags
	var x execFlags
	var rm bool
	cmd := &cobra.Command{
		Use:   "run [flags] -- CMD [ARG...]",
		Short: "Create an environment, run a command in it, remove it",
		Long: "run creates an environment, runs the command, passes its output and exit code\n" +
			"through, and removes the environment. --rm=false keeps it.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return run(a, cmd.Context(), &f, &x, rm, args)
		},
	}
	f.register(cmd)
	x.register(cmd)
	cmd.Flags().BoolVar(&rm, "rm", true, "remove the environment afterwards")
	return cmd
}

func run(a *app, ctx context.Context, f *createFlags, x *execFlags, rm bool, argv []string) (err error) {
	if f.taskID == "" {
		f.taskID = newTaskID("run-")
	}
	env, _, err := a.create(ctx, f, false)
	if err != nil {
		if ctx.Err() != nil {
			// The server goes on with a create whose client left.
			removeAfter(a, ctx, "fuse-"+f.taskID)
		}
		return err
	}
	if rm {
		defer func() {
			start := time.Now()
			if rmErr := removeAfter(a, ctx, env.ID); rmErr != nil {
				err = errors.Join(err, rmErr)
				return
			}
			a.progressf("%s is gone (%s)", env.ID, seconds(time.Since(start)))
		}()
	}
	return a.exec(ctx, env.ID, x, argv)
}

// removeAfter removes an environment even when the command was interrupted.
func removeAfter(a *app, ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return a.remove(ctx, id)
}
