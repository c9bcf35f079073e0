package placing

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// Schedule is "fuse schedule" with its verb.
func Schedule(t kit.Tools) *cobra.Command {
	a := &app{t}
	cmd := &cobra.Command{
		Use: "schedule", Short: "Where environments go, and why", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.explain())
	return cmd
}

// maxSpec bounds the file that a spec is read from.
const maxSpec = 64 << 10

func (a *app) explain() *cobra.Command {
	var spec gen.Spec
	var labels []string
	cmd := &cobra.Command{
		Use: "explain [SPEC]", Short: "Say where an environment would go and why no other host", Args: cobra.MaximumNArgs(1),
		Long: "explain runs a placement dry: nothing is made or reserved. SPEC is a JSON file with\n" +
			"the spec of a create (- reads standard input); flags win over what it says. It ends\n" +
			"with status 1 if no host would take the environment.",
		Example: "  fuse schedule explain --cpus 8 --ram-mb 16384 --label disk=ssd\n  echo '{\"cpus\":8,\"region\":\"eu\"}' | fuse schedule explain -",
		RunE: func(cmd *cobra.Command, args []string) error {
			ask := gen.Spec{}
			if len(args) == 1 {
				if err := readSpec(cmd.InOrStdin(), args[0], &ask); err != nil {
					return a.Usage("%s: %w", args[0], err)
				}
			}
			if err := a.overlay(cmd, &ask, spec, labels); err != nil {
				return err
			}
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			e, err := client.Placing{API: api}.Explain(cmd.Context(), ask)
			if err != nil {
				return err
			}
			return a.printExplanation(format, e)
		},
	}
	s := cmd.Flags()
	s.Int32Var(&spec.CPUs, "cpus", 0, "virtual CPUs (0: the server's default)")
	s.Int32Var(&spec.RAMMB, "ram-mb", 0, "memory in `MiB`")
	s.Int32Var(&spec.StorageGB, "storage-gb", 0, "root disk in `GiB`")
	s.StringVar(&spec.Region, "region", "", "only hosts of this region")
	s.StringVar(&spec.Arch, "arch", "", "only hosts of this architecture: amd64 or arm64")
	s.StringVar(&spec.HostID, "host", "", "only this host")
	s.StringVar(&spec.Image, "image", "", "root filesystem to boot: hosts that hold it are preferred")
	s.StringArrayVar(&labels, "label", nil, "only hosts with this label, `k=v` (repeatable)")
	s.Int32Var(&spec.GPUs, "gpus", 0, "GPUs")
	s.StringVar(&spec.GPUKind, "gpu-kind", "", "GPU model")
	s.StringVar(&spec.GPUProfile, "gpu-profile", "", "MIG profile")
	s.BoolVar(&spec.HugePages, "huge-pages", false, "memory on huge pages")
	return cmd
}

func readSpec(in io.Reader, name string, into *gen.Spec) error {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	dec := json.NewDecoder(io.LimitReader(in, maxSpec))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}

// overlay puts what flags say over what a file says.
func (a *app) overlay(cmd *cobra.Command, ask *gen.Spec, flags gen.Spec, labels []string) error {
	for name, take := range map[string]func(){
		"cpus":        func() { ask.CPUs = flags.CPUs },
		"ram-mb":      func() { ask.RAMMB = flags.RAMMB },
		"storage-gb":  func() { ask.StorageGB = flags.StorageGB },
		"region":      func() { ask.Region = flags.Region },
		"arch":        func() { ask.Arch = flags.Arch },
		"host":        func() { ask.HostID = flags.HostID },
		"image":       func() { ask.Image = flags.Image },
		"gpus":        func() { ask.GPUs = flags.GPUs },
		"gpu-kind":    func() { ask.GPUKind = flags.GPUKind },
		"gpu-profile": func() { ask.GPUProfile = flags.GPUProfile },
		"huge-pages":  func() { ask.HugePages = flags.HugePages },
	} {
		if cmd.Flags().Changed(name) {
			take()
		}
	}
	for _, l := range labels {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return a.Usage("--label %s is not k=v", l)
		}
		if ask.Labels == nil {
			ask.Labels = map[string]string{}
		}
		ask.Labels[k] = v
	}
	return nil
}

// notPlacedError is the end of an explanation of what would be refused: it has been
// said, and only the status is left to give.
type notPlacedError struct{ message string }

func (e notPlacedError) Error() string { return e.message }

func (a *app) printExplanation(format string, e gen.ScheduleExplanation) error {
	switch format {
	case "json":
		if err := a.PrintJSON(e); err != nil {
			return err
		}
	case "name":
		if e.HostID != "" {
			fmt.Fprintln(a.Out, a.Cell(e.HostID))
		}
	default:
		if err := a.sayExplanation(e); err != nil {
			return err
		}
	}
	if e.Placed {
		return nil
	}
	message := e.Error.Message
	if remedy := e.Error.Details["remedy"]; remedy != "" {
		message += "; " + remedy
	}
	return notPlacedError{"would not be placed: " + a.Cell(message)}
}

func (a *app) sayExplanation(e gen.ScheduleExplanation) error {
	if e.Placed {
		where := "on a host"
		if e.HostID != "" {
			where = "on host " + a.Cell(e.HostID)
		}
		fmt.Fprintf(a.Out, "would be placed %s (%s); %d of %d hosts qualify\n", where, e.Policy, e.Candidates, e.Candidates+e.Refused)
	} else {
		fmt.Fprintf(a.Out, "would not be placed; %d of %d hosts qualify\n", e.Candidates, e.Candidates+e.Refused)
	}
	rows := make([][]string, 0, len(e.Hosts))
	for _, h := range e.Hosts {
		verdict, why := "passes", fmt.Sprintf("%d CPUs, %d MB, %d GB free", h.FreeCPUs, h.FreeRAMMB, h.FreeStorageGB)
		if h.ImageLocal {
			why += ", holds the image"
		}
		if h.ArtifactLocal {
			why += ", holds the artifact"
		}
		if h.Gate != "" {
			verdict, why = h.Gate, h.Reason
		}
		rows = append(rows, []string{h.HostID, verdict, why})
	}
	if len(rows) > 0 {
		return a.Table(a.Out, []string{"HOST", "GATE", "WHY"}, rows)
	}
	for _, g := range e.Gates {
		rows = append(rows, []string{g.Gate, strconv.Itoa(g.Hosts)})
	}
	if len(rows) == 0 {
		return nil
	}
	return a.Table(a.Out, []string{"GATE", "HOSTS REFUSED"}, rows)
}
