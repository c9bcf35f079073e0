package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
)

// removeTimeout bounds the removal of an environment after ^C.
const removeTimeout = 30 * time.Second

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
			return a.run(cmd.Context(), &f, &x, rm, args)
		},
	}
	f.register(cmd)
	x.register(cmd)
	cmd.Flags().BoolVar(&rm, "rm", true, "remove the environment afterwards")
	return cmd
}

func (a *app) run(ctx context.Context, f *createFlags, x *execFlags, rm bool, argv []string) error {
	// What can be said of the command is said before a machine boots for it.
	req, err := x.request(a.Streams.In, argv)
	if err != nil {
		return err
	}
	opts := client.CreateOptions{IdempotencyKey: rand.Text()}
	env, err := a.create(ctx, f, opts)
	if err != nil {
		if ctx.Err() != nil && rm {
			if rmErr := a.removeUnseen(ctx, f, opts); rmErr != nil {
				fmt.Fprintln(a.Streams.Err, describe(fmt.Errorf("what the interrupted create makes is still there: %w", rmErr)))
			}
		}
		return err
	}
	if !rm {
		return a.exec(ctx, env.ID, req)
	}
	err = a.exec(ctx, env.ID, req)
	start := time.Now()
	if rmErr := a.removeAfter(ctx, env.ID); rmErr != nil {
		// Told here: a command's own exit code says nothing more.
		fmt.Fprintln(a.Streams.Err, describe(fmt.Errorf("%s is still there: %w", env.ID, rmErr)))
		if err == nil {
			err = &ExitError{Code: ExitCode(rmErr)}
		}
		return err
	}
	a.progressf("%s is gone (%s)", env.ID, seconds(time.Since(start)))
	return err
}

// removeUnseen removes what an interrupted create makes: the server goes on
// with it. Asking again under the same key tells its id, and never that of an
// environment which another create made under the same task id.
func (a *app) removeUnseen(ctx context.Context, f *createFlags, opts client.CreateOptions) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	opts.Async = true
	env, err := a.create(ctx, f, opts)
	if err != nil {
		return err
	}
	return a.removeAfter(ctx, env.ID)
}

// removeAfter removes an environment even when the command was interrupted.
func (a *app) removeAfter(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	return a.remove(ctx, id)
}
