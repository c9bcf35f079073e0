package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/imagecmd"
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
	imagecmd.Add(cmd, streams, open)
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
