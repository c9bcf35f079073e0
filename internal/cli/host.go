package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/hostlife"
)

func hostCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "host", Aliases: []string{"hosts"}, Short: "Machines that run environments", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(hostListCmd(a), hostGetCmd(a), hostRegisterCmd(a), hostRemoveCmd(a), hostCordonCmd(a), hostUncordonCmd(a), hostPurgeCmd(a))
	cmd.AddCommand(hostlife.Commands(a.tools())...)
	return cmd
}

func hostListCmd(a *app) *cobra.Command {
	var p paging
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List hosts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.server()
			if err != nil {
				return err
			}
			list := gen.HostList{Hosts: []gen.HostInfo{}}
			list.NextCursor, err = p.walk(func(limit int, cursor string) (string, error) {
				page, err := api.Hosts(cmd.Context(), gen.ListHostsParams{Limit: &limit, Cursor: given(cursor)})
				list.Hosts = append(list.Hosts, page.Hosts...)
				return page.NextCursor, err
			})
			if err != nil {
				return err
			}
			rows := make([][]string, 0, len(list.Hosts))
			for _, h := range list.Hosts {
				rows = append(rows, hostRow(h))
			}
			return a.printList(listing{list, []string{"ID", "STATE", "SEEN", "BACKEND", "ACCEL", "VMS", "CPUS", "RAM MB", "DISK GB"}, rows, list.NextCursor})
		},
	}
	p.register(cmd)
	return cmd
}

func hostRow(h gen.HostInfo) []string {
	of := func(used, total int) string { return fmt.Sprintf("%d/%d", used, total) }
	seen := "never"
	if !h.LastSeen.IsZero() {
		seen = age(time.Now(), h.LastSeen) + " ago"
	}
	switch h.Condition {
	case "unreachable":
		seen = "UNREACHABLE for " + age(time.Now(), h.UnreachableSince)
	case "missed":
		seen += fmt.Sprintf(" (%d missed)", h.Misses)
	}
	switch {
	case h.Fenced != "":
		seen = "fenced, " + seen
	case h.CertificateShown != "":
		seen = "CERTIFICATE CHANGED, " + seen
	case h.Returning != "":
		seen = "returning, " + seen
	}
	return []string{
		h.ID, h.State, seen, dash(h.Backend), dash(h.Accelerator),
		of(h.Allocated.VMCount, h.Capacity.VMCount), of(h.Allocated.CPUs, h.Capacity.CPUs),
		of(h.Allocated.RAMMB, h.Capacity.RAMMB), of(h.Allocated.StorageGB, h.Capacity.StorageGB),
	}
}

func hostGetCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show one host", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeHosts(),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			h, err := api.Host(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.printJSON(h)
			case "name":
				_, err := fmt.Fprintln(a.Streams.Out, cell(h.ID))
				return err
			}
			return a.printHost(h)
		},
	}
}

func (a *app) printHost(h gen.HostInfo) error {
	r := hostRow(h)
	state := h.State
	if d := h.Drain; !d.Deadline.IsZero() {
		state = fmt.Sprintf("%s, %d of %d environments are left; deadline %s", h.State, d.Left, d.Total, d.Deadline.Format(time.RFC3339))
	}
	fields := [][2]string{
		{"id", h.ID}, {"url", h.URL}, {"state", state}, {"seen", r[2]}, {"backend", strings.TrimSpace(r[3] + " " + h.DriverVersion)}, {"accel", r[4]},
		{"arch", h.Capacity.Arch}, {"cpu", h.CPUModel}, {"kernel", h.Kernel}, {"machine", h.MachineID}, {"boot", h.BootID}, {"registry", h.RegistryID},
		{"version", h.Version}, {"cert", h.CertSha256}, {"shows", h.CertificateShown}, {"returning", h.Returning}, {"region", h.Region}, {"vms", r[5]}, {"cpus", r[6]}, {"ram", r[7] + " MB"}, {"disk", r[8] + " GB"},
	}
	if h.CPUOvercommit > 1 {
		fields = append(fields, [2]string{"overcommit", fmt.Sprintf("each CPU %g times", h.CPUOvercommit)})
	}
	if h.Capacity.HugePages > 0 {
		fields = append(fields, [2]string{"huge pages", fmt.Sprintf("%d/%d", h.Allocated.HugePages, h.Capacity.HugePages)})
	}
	for _, k := range slices.Sorted(maps.Keys(h.Labels)) {
		fields = append(fields, [2]string{"label", k + "=" + h.Labels[k]})
	}
	for _, m := range h.Missing {
		fields = append(fields, [2]string{"missing", m})
	}
	for _, w := range h.Warnings {
		fields = append(fields, [2]string{"warning", w})
	}
	if !h.UnreachableSince.IsZero() {
		fields = append(fields, [2]string{"down", "since " + h.UnreachableSince.Format(time.RFC3339) + ", " + strconv.Itoa(h.Misses) + " looks missed"})
		if !h.LastSeen.IsZero() {
			fields = append(fields, [2]string{"last seen", h.LastSeen.Format(time.RFC3339)})
		}
	}
	fields = append(fields, foreign(h)...)
	return sheet(a.Streams.Out, append(fields, [2]string{"fenced", h.Fenced}, [2]string{"trouble", h.UnreachableReason}))
}

type registerFlags struct {
	url, region, token, tokenFile, cert, backend, arch string
	cpus, ramMB, storageGB, maxVMs, gpus               int
	gpuKind                                            string
	migProfiles, labels                                []string
}

func (f *registerFlags) request(id string) (gen.RegisterHost, error) {
	req := gen.RegisterHost{
		ID: id, URL: f.url, Token: f.token, CertSha256: f.cert, Region: f.region, Backend: f.backend,
		Capacity: gen.Capacity{
			CPUs: f.cpus, RAMMB: f.ramMB, StorageGB: f.storageGB, VMCount: f.maxVMs, Arch: f.arch, GPUs: f.gpus, GPUKind: f.gpuKind,
		},
	}
	if f.url == "" {
		return req, usagef("--url is needed: the address of the host agent, as 'fuse hostd' prints it")
	}
	var err error
	switch {
	case f.token != "" && f.tokenFile != "":
		return req, usagef("--token and --token-file are both given")
	case f.tokenFile != "":
		if req.Token, err = readToken(f.tokenFile); err != nil {
			return req, err
		}
	}
	if req.Labels, err = pairs("--label", f.labels, nil); err != nil {
		return req, err
	}
	mig, err := pairs("--mig-profile", f.migProfiles, nil)
	if err != nil || len(mig) == 0 {
		return req, err
	}
	req.Capacity.MIGProfiles = map[string]int{}
	for k, v := range mig {
		if req.Capacity.MIGProfiles[k], err = strconv.Atoi(v); err != nil {
			return req, usagef("--mig-profile %s=%s: the count is not a number", k, v)
		}
	}
	return req, nil
}

// agents is a flag that means the host agent here and the server everywhere
// else. Given twice, one of them was to name the server, and without this the
// host would be registered with whichever the context names.
type agents struct {
	value *string
	given bool
}

func (f *agents) String() string { return "" }
func (f *agents) Type() string   { return "string" }

func (f *agents) Set(v string) error {
	if f.given {
		return errors.New("given twice, and here it is the host agent's: name the server with --context, or with FUSE_URL and FUSE_TOKEN_FILE")
	}
	*f.value, f.given = v, true
	return nil
}

func hostRegisterCmd(a *app) *cobra.Command {
	var f registerFlags
	cmd := &cobra.Command{
		Use: "register ID", Aliases: []string{"add"}, Short: "Add a host, or refresh what is known of it", Args: cobra.ExactArgs(1),
		Long: "register tells the server of a host agent. Capacity that is not given is asked of\nthe agent. Here --url and --token are the agent's; the server is the one of the\ncontext, FUSE_URL and FUSE_TOKEN.",
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			req, err := f.request(args[0])
			if err != nil {
				return err
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			h, err := api.RegisterHost(cmd.Context(), req)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.printJSON(h)
			}
			for _, w := range h.Warnings {
				a.progressf("warning: %s", w)
			}
			fmt.Fprintln(a.Streams.Out, cell(h.ID))
			return nil
		},
	}
	s := cmd.Flags()
	s.Var(&agents{value: &f.url}, "url", "address of the host agent, `https://HOST:PORT`")
	s.Var(&agents{value: &f.token}, "token", "the host agent's token (prefer --token-file)")
	s.Var(&agents{value: &f.tokenFile}, "token-file", "`file` that holds the host agent's token")
	s.StringVar(&f.cert, "cert-sha256", "", "fingerprint of the agent's certificate, as 'fuse hostd' prints it")
	s.StringVar(&f.region, "region", "", "region of the host")
	s.StringVar(&f.backend, "backend", "", "qemu, firecracker or sim (default: what the agent says)")
	s.StringVar(&f.arch, "arch", "", "amd64 or arm64 (default: what the agent says)")
	s.IntVar(&f.cpus, "cpus", 0, "CPUs to hand out (default: what the agent says)")
	s.IntVar(&f.ramMB, "ram-mb", 0, "memory to hand out, in `MiB`")
	s.IntVar(&f.storageGB, "storage-gb", 0, "disk to hand out, in `GiB`")
	s.IntVar(&f.maxVMs, "max-vms", 0, "most environments at a time")
	s.IntVar(&f.gpus, "gpus", 0, "GPUs to hand out")
	s.StringVar(&f.gpuKind, "gpu-kind", "", "GPU model")
	s.StringArrayVar(&f.migProfiles, "mig-profile", nil, "MIG instances, `profile=count` (repeatable)")
	s.StringArrayVar(&f.labels, "label", nil, "placement label, `k=v` (repeatable)")
	return cmd
}

func hostRemoveCmd(a *app) *cobra.Command {
	cmd := hostVerb(a, "rm ID", "Remove a host that runs no environments", (*client.API).RemoveHost)
	cmd.Aliases = []string{"remove"}
	cmd.Long = "rm removes a host that no environment is on. With --forget it removes one that will\nnever come back: what was on it ends as lost. That is refused while the host answers."
	cmd.Flags().Bool("yes", true, "accepted for the public command line")
	lost := cmd.Flags().Bool("forget", false, "the host will never come back: end what is on it as lost")
	remove := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*lost {
			return remove(cmd, args)
		}
		return forgetHost(cmd.Context(), a, args[0])
	}
	return cmd
}

func forgetHost(ctx context.Context, a *app, id string) error {
	format, err := a.format()
	if err != nil {
		return err
	}
	api, err := a.server()
	if err != nil {
		return err
	}
	out, err := client.Hosts{API: api}.Forget(ctx, id)
	switch {
	case err != nil:
		return err
	case format == "json":
		return a.printJSON(out)
	}
	if out.Lost != nil && *out.Lost > 0 {
		a.progressf("%d environments were lost with it, among them %s", *out.Lost, strings.Join(out.Environments, " "))
	}
	fmt.Fprintln(a.Streams.Out, id)
	return nil
}

func hostCordonCmd(a *app) *cobra.Command {
	return hostVerb(a, "cordon ID", "Place no new environments on a host", func(api *client.API, ctx context.Context, id string) error {
		return api.Cordon(ctx, id, true)
	})
}

func hostUncordonCmd(a *app) *cobra.Command {
	return hostVerb(a, "uncordon ID", "Place environments on a host again", func(api *client.API, ctx context.Context, id string) error {
		return api.Cordon(ctx, id, false)
	})
}

// hostVerb is a verb that the API answers with nothing.
func hostVerb(a *app, use, short string, act func(*client.API, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeHosts(),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.server()
			if err != nil {
				return err
			}
			if err := act(api, cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintln(a.Streams.Out, args[0])
			return nil
		},
	}
}
