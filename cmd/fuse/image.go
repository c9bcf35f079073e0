package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/hostd/image"
)

// imageCmd manages the images of this machine: they are the host's, not the
// server's, so these verbs work on a data directory.
func imageCmd(streams cli.Streams) *cobra.Command {
	var dir string
	var o imageOptions
	cmd := &cobra.Command{
		Use: "image", Aliases: []string{"images"}, Short: "Root filesystems that environments on this machine boot",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&dir, "data-dir", datadir.Default(), "`directory` of the host's data, as hostd or dev was given it")
	o.register(cmd.PersistentFlags())
	open := func() (*image.Store, error) {
		d, err := datadir.Open(dir)
		if err != nil {
			return nil, err
		}
		return openImages(d, o)
	}
	cmd.AddCommand(imageBuildCmd(streams, open), imageListCmd(streams, open))
	return cmd
}

// imageOptions name a kernel other than Debian's, and a guest agent other than
// the one beside this program.
type imageOptions struct{ kernel, modules, fused string }

func (o *imageOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.kernel, "kernel", "", "kernel `file` to boot instead of Debian's cloud kernel")
	f.StringVar(&o.modules, "kernel-modules", "", "modules `directory` of --kernel (lib/modules/VERSION)")
	f.StringVar(&o.fused, "fused", "", "guest agent `file` (default: fused beside this program)")
}

func openImages(d datadir.Dir, o imageOptions) (*image.Store, error) {
	return image.Open(image.Config{Dir: string(d), Fused: o.fused, Kernel: o.kernel, Modules: o.modules})
}

func imageBuildCmd(streams cli.Streams, open func() (*image.Store, error)) *cobra.Command {
	return &cobra.Command{
		Use: "build NAME", Short: "Build a built-in image (minimal: busybox)", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := open()
			if err != nil {
				return err
			}
			start := time.Now()
			meta, err := store.Build(cmd.Context(), args[0], func(msg string) { fmt.Fprintln(streams.Err, "  "+msg) })
			if err != nil {
				return err
			}
			fmt.Fprintf(streams.Err, "image %s is ready (%.1f s)\n", meta.Name, time.Since(start).Seconds())
			fmt.Fprintln(streams.Out, meta.Digest)
			return nil
		},
	}
}

func imageListCmd(streams cli.Streams, open func() (*image.Store, error)) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the images of this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := open()
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			format, err := cli.ListFormat(cmd)
			if err != nil {
				return err
			}
			switch format {
			case "name":
				for _, m := range list {
					fmt.Fprintln(streams.Out, m.Name)
				}
				return nil
			case "json":
				if list == nil {
					list = []image.Meta{}
				}
				return json.NewEncoder(streams.Out).Encode(map[string]any{"images": list})
			}
			tw := tabwriter.NewWriter(streams.Out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(tw, "NAME\tSIZE\tDIGEST\tCREATED")
			for _, m := range list {
				fmt.Fprintf(tw, "%s\t%d MB\t%.19s\t%s\n", m.Name, m.Size>>20, m.Digest, m.Created.Format(time.DateTime))
			}
			return tw.Flush()
		},
	}
}
