// Package amend is the verb that changes living environments.
package amend

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

const mostIDs = 100

// Command is "fuse update".
func Command(t kit.Tools) *cobra.Command {
	var maxRuntime, idleTimeout time.Duration
	var tags, expose, limits, secrets []string
	cmd := &cobra.Command{
		Use: "update ID...", Short: "Change limits, tags, secrets and published ports of living environments",
		Long: "update changes what it is given and leaves the rest. --max-runtime counts from the\n" +
			"creation, --idle-timeout from the last use; 0 is the fleet's default. --tag k=v sets a\n" +
			"tag, --tag k- removes it; --secret does the same to secrets. --expose names all ports to\n" +
			"publish from now on, --limit all limits of what it takes.",
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: t.Environments(mostIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			var body gen.AmendEnvironment
			if cmd.Flags().Changed("max-runtime") {
				body.MaxRuntimeSeconds = new(kit.WholeSeconds(maxRuntime))
			}
			if cmd.Flags().Changed("idle-timeout") {
				body.IdleTimeoutSeconds = new(kit.WholeSeconds(idleTimeout))
			}
			for _, tag := range tags {
				k, v, set := strings.Cut(tag, "=")
				gone, remove := strings.CutSuffix(k, "-")
				if body.Tags == nil {
					body.Tags = map[string]*string{}
				}
				switch {
				case set && k != "":
					body.Tags[k] = &v
				case remove && !set && gone != "":
					body.Tags[gone] = nil
				default:
					return t.Usage("--tag %q is neither k=v nor k-", tag)
				}
			}
			if err := setSecrets(&body, secrets); err != nil {
				return t.Usage("%w", err)
			}
			if len(limits) > 0 {
				if limits[0] == "none" {
					limits = limits[1:]
				}
				var err error
				if body.Limits, err = kit.ParseLimits(limits); err != nil {
					return t.Usage("%w", err)
				}
			}
			if len(expose) > 0 {
				ports := []gen.Expose{}
				if len(expose) != 1 || expose[0] != "none" {
					var err error
					if ports, err = kit.ParseExpose(expose); err != nil {
						return t.Usage("%w", err)
					}
				}
				body.Expose = &ports
			}
			if body.MaxRuntimeSeconds == nil && body.IdleTimeoutSeconds == nil && len(body.Tags) == 0 && body.Expose == nil && body.Limits == nil && len(body.Secrets) == 0 {
				return t.Usage("nothing to change: give --max-runtime, --idle-timeout, --tag, --secret, --limit or --expose")
			}
			format, err := t.Format()
			if err != nil {
				return err
			}
			api, err := t.Server()
			if err != nil {
				return err
			}
			for _, id := range args {
				env, err := api.Amend(cmd.Context(), id, body)
				switch {
				case err != nil:
					return err
				case format == "json":
					err = t.PrintJSON(env)
				default:
					_, err = fmt.Fprintln(t.Out, t.Cell(env.ID))
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.DurationVar(&maxRuntime, "max-runtime", 0, "age at which to end it (0: the fleet's default)")
	f.DurationVar(&idleTimeout, "idle-timeout", 0, "time without use after which to end it, 1m at least (0: the fleet's default)")
	f.StringArrayVar(&expose, "expose", nil, "a `port` to publish, "+kit.ExposeForm+", in place of all before (repeatable); none publishes no port")
	f.StringArrayVar(&limits, "limit", nil, "a limit of what it takes, `"+kit.LimitForm+"`, in place of all before: "+kit.LimitHelp+" (repeatable); none is no limit")
	f.StringArrayVar(&secrets, "secret", nil, "`k=v` sets a secret, k=@file takes it from a file, k- removes it (repeatable)")
	f.StringArrayVar(&tags, "tag", nil, "`k=v` sets a tag, k- removes it (repeatable)")
	return cmd
}

// setSecrets reads k=v, k=@file and k-.
func setSecrets(body *gen.AmendEnvironment, args []string) error {
	for _, arg := range args {
		k, v, set := strings.Cut(arg, "=")
		gone, remove := strings.CutSuffix(k, "-")
		if body.Secrets == nil {
			body.Secrets = map[string]*string{}
		}
		switch {
		case set && k != "":
			data, err := kit.Text(v)
			if err != nil {
				return err
			}
			body.Secrets[k] = new(string(data))
		case remove && !set && gone != "":
			body.Secrets[gone] = nil
		default:
			return fmt.Errorf("--secret is neither k=v, k=@file nor k-")
		}
	}
	return nil
}
