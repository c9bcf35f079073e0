// Package imagecmd holds the verbs of "fuse image" that work on this machine's
// own data directory.
package imagecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
)

// Open opens the images of the data directory that was named.
type Open func() (*image.Store, error)

type verbs struct {
	streams cli.Streams
	open    Open
}

// Add adds the verbs to "fuse image".
func Add(cmd *cobra.Command, streams cli.Streams, open Open) {
	v := verbs{streams, open}
	cmd.AddCommand(v.build(), v.pull(), v.importCmd(), v.list(), v.inspect(), v.remove(), v.prune())
}

func (v verbs) line(text string) { fmt.Fprintln(v.streams.Err, "  "+text) }

func (v verbs) build() *cobra.Command {
	return &cobra.Command{
		Use: "build NAME", Short: "Build a built-in image (minimal: busybox; debian: python3, git, curl, compilers)", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := v.open()
			if err != nil {
				return err
			}
			start := time.Now()
			meta, err := store.Build(cmd.Context(), args[0], v.line)
			if err != nil {
				return err
			}
			fmt.Fprintf(v.streams.Err, "image %s is ready (%.1f s)\n", meta.Name, time.Since(start).Seconds())
			fmt.Fprintln(v.streams.Out, meta.Digest)
			return nil
		},
	}
}

// progress prints how far a pull is: a line that is written over on a
// terminal, else one line for each phase and each tenth.
func (v verbs) progress() (say func(oci.Progress), done func()) {
	f, ok := v.streams.Err.(*os.File)
	terminal := false
	if ok {
		st, err := f.Stat()
		terminal = err == nil && st.Mode()&os.ModeCharDevice != 0
	}
	var mu sync.Mutex
	last, width := "", 0
	say = func(p oci.Progress) {
		mu.Lock()
		defer mu.Unlock()
		text := p.String()
		if terminal {
			fmt.Fprintf(v.streams.Err, "\r  %s%s", text, strings.Repeat(" ", max(0, width-len(text))))
			width = len(text)
			return
		}
		key := p.Phase
		if p.Total > 0 {
			key += fmt.Sprint(p.Done * 10 / p.Total)
		}
		if key != last {
			last = key
			v.line(text)
		}
	}
	return say, func() {
		mu.Lock()
		defer mu.Unlock()
		if terminal && width > 0 {
			fmt.Fprintln(v.streams.Err)
		}
	}
}

func (v verbs) pull() *cobra.Command {
	var again bool
	cmd := &cobra.Command{
		Use: "pull REFERENCE", Short: "Pull an image from a registry", Args: cobra.ExactArgs(1),
		Long: "Pull an image from a registry, such as docker.io/library/python:3.12, and make a root\n" +
			"filesystem of it. The login is that of the docker configuration (docker login).\n" +
			"Environments name it by the same reference; hosts pull what they lack on their own.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return v.make(func(s *image.Store, o image.PullOptions) (image.Image, error) {
				o.Again = again
				return s.Pull(cmd.Context(), args[0], o)
			})
		},
	}
	cmd.Flags().BoolVar(&again, "again", false, "ask the registry what the tag stands for now, also if it was pulled before")
	return cmd
}

func (v verbs) importCmd() *cobra.Command {
	var name, which string
	cmd := &cobra.Command{
		Use: "import PATH", Short: "Make an image of an OCI layout directory or a docker save archive", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("the image needs a name: give --name")}
			}
			return v.make(func(s *image.Store, o image.PullOptions) (image.Image, error) {
				return s.Import(cmd.Context(), args[0], name, which, o)
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "`name` of the image on this host, by which environments ask for it")
	cmd.Flags().StringVar(&which, "ref", "", "which of several images: a tag, or the layout's `ref` name or digest")
	return cmd
}

// make runs a pull or an import and prints the digest.
func (v verbs) make(do func(*image.Store, image.PullOptions) (image.Image, error)) error {
	store, err := v.open()
	if err != nil {
		return err
	}
	start := time.Now()
	say, done := v.progress()
	img, err := do(store, image.PullOptions{Progress: say})
	done()
	if err != nil {
		return err
	}
	fmt.Fprintf(v.streams.Err, "image %s is ready (%.1f s)\n", img.Name, time.Since(start).Seconds())
	fmt.Fprintln(v.streams.Out, img.Digest)
	return nil
}

func (v verbs) list() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the images of this machine", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := v.open()
			if err != nil {
				return err
			}
			list, err := store.Entries()
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
					fmt.Fprintln(v.streams.Out, m.Name)
				}
				return nil
			case "json":
				return v.json(map[string]any{"images": list})
			}
			tw := tabwriter.NewWriter(v.streams.Out, 0, 4, 2, ' ', 0)
			fmt.Fprintln(tw, "NAME\tDISK\tIN USE\tDIGEST\tCREATED")
			for _, m := range list {
				fmt.Fprintf(tw, "%s\t%d MB\t%d\t%.19s\t%s\n", m.Name, m.Disk>>20, m.InUse, m.Digest, m.Created.Format(time.DateTime))
			}
			return tw.Flush()
		},
	}
}

func (v verbs) json(o any) error {
	enc := json.NewEncoder(v.streams.Out)
	return enc.Encode(o)
}

func (v verbs) inspect() *cobra.Command {
	return &cobra.Command{
		Use: "inspect IMAGE", Short: "Show all that is known of one image of this machine, as JSON", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := v.open()
			if err != nil {
				return err
			}
			e, err := store.Inspect(args[0])
			if err != nil {
				return err
			}
			enc := json.NewEncoder(v.streams.Out)
			enc.SetIndent("", "  ")
			return enc.Encode(e)
		},
	}
}

func (v verbs) remove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm IMAGE...", Aliases: []string{"remove"}, Short: "Remove images from this machine", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := v.open()
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args {
				err := store.Remove(cmd.Context(), name, force)
				if err == nil {
					fmt.Fprintln(v.streams.Out, name)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also if environments run from it; they keep their content")
	return cmd
}

func (v verbs) prune() *cobra.Command {
	var o image.PruneOptions
	var maxGB int64
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove pulled images that nothing uses", Args: cobra.NoArgs,
		Long: "Remove pulled images that no environment runs from, what rebuilt images left behind and\n" +
			"what interrupted pulls left. Images that were used in the last ten minutes stay.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := v.open()
			if err != nil {
				return err
			}
			o.MaxBytes = maxGB << 30
			gone, err := store.Prune(cmd.Context(), o)
			if err != nil {
				return err
			}
			format, err := cli.ListFormat(cmd)
			if err != nil {
				return err
			}
			if format == "json" {
				if gone.Images == nil {
					gone.Images = []image.Entry{}
				}
				return v.json(gone)
			}
			for _, e := range gone.Images {
				fmt.Fprintln(v.streams.Out, e.Name)
			}
			fmt.Fprintf(v.streams.Err, "%d images removed, %d MB freed\n", len(gone.Images), gone.Freed>>20)
			return nil
		},
	}
	cmd.Flags().DurationVar(&o.Unused, "unused", 0, "only those that were not used for this `time`")
	cmd.Flags().Int64Var(&maxGB, "max-gb", 0, "only until those left take no more, in `GiB`, the longest unused first")
	return cmd
}
