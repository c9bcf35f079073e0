package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli/access"
	"github.com/fusevm/fuse/internal/cli/amend"
	"github.com/fusevm/fuse/internal/cli/deadletter"
	"github.com/fusevm/fuse/internal/cli/guest"
	"github.com/fusevm/fuse/internal/cli/images"
	"github.com/fusevm/fuse/internal/cli/notify"
	"github.com/fusevm/fuse/internal/cli/placing"
	"github.com/fusevm/fuse/internal/cli/playguard"
	"github.com/fusevm/fuse/internal/cli/ports"
	"github.com/fusevm/fuse/internal/cli/reconcile"
	"github.com/fusevm/fuse/internal/cli/snapshots"
	"github.com/fusevm/fuse/internal/cli/source"
	"github.com/fusevm/fuse/internal/cli/usage"
)

// Streams are where a command reads and writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Options make the root command.
type Options struct {
	Version string
	Streams Streams
	// Getenv reads the environment; tests replace it.
	Getenv func(string) string
	// Extra are commands that run parts of Fuse itself (dev, server, hostd).
	Extra []*cobra.Command
}

// app is what every verb shares: where to connect and how to print.
type app struct {
	Options
	url, token, tokenFile string
	contextName           string
	configPath            string
	output                string
	jsonOut               bool
	quiet                 bool
}

// New returns the root command with every verb below it.
func New(o Options) *cobra.Command {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	a := &app{Options: o}
	root := &cobra.Command{
		Use:   "fuse",
		Short: "Sandbox VMs on machines you own",
		Long: "fuse creates short-lived virtual machines on machines you own, runs commands\n" +
			"in them and cleans up after them.\n\n" +
			"Start with:  fuse dev            (one machine, everything in one process)\n" +
			"Then:        fuse run -- uname -a\n",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       o.Version,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			_, err := a.format()
			return err
		},
	}
	root.SetIn(o.Streams.In)
	root.SetOut(o.Streams.Out)
	root.SetErr(o.Streams.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		hint := ""
		if strings.Contains(cmd.Use, "-- CMD") {
			hint = " The command's own flags come after '--': " + cmd.UseLine()
		}
		return usagef("%w\nRun '%s --help' for its flags.%s", err, cmd.CommandPath(), hint)
	})
	f := root.PersistentFlags()
	f.StringVar(&a.url, "url", "", "server `URL` (env FUSE_URL; else the current context)")
	f.StringVar(&a.token, "token", "", "API `token` (env FUSE_TOKEN; visible to other users of this machine: prefer --token-file)")
	f.StringVar(&a.tokenFile, "token-file", "", "`file` that holds the API token (env FUSE_TOKEN_FILE)")
	f.StringVar(&a.contextName, "context", "", "context to use instead of the current one")
	f.StringVar(&a.configPath, "config", "", "configuration `file` (default ~/.config/fuse/config.yaml)")
	f.StringVarP(&a.output, "output", "o", "", "output `format`: table, json or name")
	f.BoolVar(&a.jsonOut, "json", false, "print the API's own objects (same as -o json)")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "no progress on stderr; lists print ids only")

	root.AddGroup(
		&cobra.Group{ID: "env", Title: "Environments:"},
		&cobra.Group{ID: "ops", Title: "Hosts and servers:"},
		&cobra.Group{ID: "cfg", Title: "This command line:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("env", runCmd(a), createCmd(a), listCmd(a), getCmd(a), execCmd(a), logsCmd(a),
		drainCmd(a), completeCmd(a), rmCmd(a), access.RotateToken(a.tools()), amend.Command(a.tools()), usage.Command(a.tools()), environmentCmd(a))
	add("env", guest.Commands(a.tools())...)
	add("env", ports.Commands(a.tools())...)
	add("env", snapshots.Commands(a.tools())...)
	add("env", happened(a)...)
	add("env", with(playguard.Playground(a.tools()), source.Playground(a.tools())), playguard.Trick(a.tools()))
	add("ops", notify.Command(a.tools()))
	add("ops", webhookCmd(a))
	add("ops", access.Key(a.tools()))
	add("ops", with(playguard.Marquee(a.tools()), source.Marquee(a.tools())))
	add("ops", hostCmd(a), reconcile.Command(a.tools()), deadletter.Command(a.tools()))
	add("ops", placing.Quota(a.tools()), placing.Schedule(a.tools()))
	add("ops", o.Extra...)
	for _, c := range o.Extra {
		if c.Name() == "server" {
			c.AddCommand(serverStatusCmd(a))
		}
		if c.Name() == "image" {
			images.Attach(c, a.tools())
		}
	}
	add("cfg", contextCmd(a), versionCmd(a))
	root.SetHelpCommandGroupID("cfg")
	root.SetCompletionCommandGroupID("cfg")
	for _, c := range root.Commands() {
		checkArgs(c)
	}
	return root
}

// checkArgs turns complaints about arguments into usage errors (exit code 2).
func checkArgs(c *cobra.Command) {
	if inner := c.Args; inner != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := inner(cmd, args); err != nil {
				return usagef("%w\nUsage: %s", err, cmd.UseLine())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		checkArgs(sub)
	}
}

// Execute runs the command line and returns the exit code.
func Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := ExitCode(err)
	if strings.HasPrefix(fmt.Sprint(err), "unknown command") {
		code = ExitUsage
	}
	if err != nil {
		if text := describe(err); text != "" {
			fmt.Fprintln(root.ErrOrStderr(), text)
		}
	}
	return code
}

// ListFormat is the output format that a list of Options.Extra was asked for.
func ListFormat(cmd *cobra.Command) (string, error) {
	f := cmd.Flags()
	quiet, err := f.GetBool("quiet")
	if err != nil {
		return "", err
	}
	asJSON, err := f.GetBool("json")
	if err != nil {
		return "", err
	}
	output, err := f.GetString("output")
	if err != nil {
		return "", err
	}
	return listFormat(&app{jsonOut: asJSON, output: output, quiet: quiet})
}

func (a *app) format() (string, error) {
	if a.jsonOut {
		return "json", nil
	}
	switch a.output {
	case "", "table":
		return "table", nil
	case "json", "name":
		return a.output, nil
	}
	return "", usagef("output format %q is not known: use table, json or name", a.output)
}

// listFormat is the form of a list, of which --quiet leaves the ids.
func listFormat(a *app) (string, error) {
	format, err := a.format()
	if format == "table" && a.quiet {
		format = "name"
	}
	return format, err
}

// with puts further verbs below a noun.
func with(noun *cobra.Command, verbs []*cobra.Command) *cobra.Command {
	noun.AddCommand(verbs...)
	return noun
}
