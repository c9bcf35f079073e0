package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/cli"
)

// demoCommands are run in the demonstration's environment, one after another,
// by driver: a simulated guest knows a handful of words.
var demoCommands = map[string][][]string{
	"qemu": {
		{"uname", "-a"},
		{"sh", "-c", "echo hello from $(hostname), up $(cut -d' ' -f1 /proc/uptime) s"},
		{"df", "-h", "/"},
	},
	"sim": {{"echo", "hello from a machine that is not there"}},
}

// show creates, uses and destroys an environment through the command line,
// exactly as a user would, and then looks that nothing is left.
func (d *dev) show(ctx context.Context, url string) error {
	start := time.Now()
	fuse := func(out io.Writer, args ...string) error {
		fmt.Fprintf(d.streams.Err, "\n$ fuse %s\n", cli.Quoted(args))
		root := cli.New(cli.Options{
			Version: version, Streams: cli.Streams{In: strings.NewReader(""), Out: out, Err: d.streams.Err},
			Getenv: func(string) string { return "" },
		})
		args = append([]string{"--url", url, "--token-file", d.dir.Path("token")}, args...)
		if code := cli.Execute(ctx, root, args); code != cli.ExitOK {
			return fmt.Errorf("fuse %s: exit code %d", args[4], code)
		}
		return nil
	}
	task := fmt.Sprintf("demo-%d", start.Unix())
	if err := fuse(d.streams.Out, "create", "--task-id", task); err != nil {
		return err
	}
	id := d.settings.VMPrefix + task
	for _, argv := range demoCommands[d.host.driver] {
		if err := fuse(d.streams.Out, append([]string{"exec", id, "--"}, argv...)...); err != nil {
			return err
		}
	}
	if err := fuse(d.streams.Out, "rm", id); err != nil {
		return err
	}
	var left strings.Builder
	if err := fuse(&left, "ls", "--output", "name"); err != nil {
		return err
	}
	if strings.Contains(left.String(), id) {
		return fmt.Errorf("%s is still listed", id)
	}
	fmt.Fprint(d.streams.Out, left.String())
	fmt.Fprintf(d.streams.Err, "\n%s came and went in %.1f s\n\n", d.machine(), time.Since(start).Seconds())
	return nil
}

func (d *dev) machine() string {
	if d.host.driver == "sim" {
		return "a simulated machine"
	}
	return "a real machine"
}
