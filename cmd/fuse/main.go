// Command fuse is Fuse in one binary: the control plane, the host agent and
// the command line. This folder only reads flags and starts what they name;
// package plane is the one place where all services meet.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli"
)

// version is stamped by the build.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	streams := cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	root := cli.New(cli.Options{
		Version: version,
		Streams: streams,
		Extra: []*cobra.Command{
			devCmd(streams), serverCmd(streams), hostdCmd(streams), imageCmd(streams), storeCmd(streams), benchCmd(streams), doctorCmd(streams),
		},
	})
	return cli.Execute(ctx, root, args)
}
