package cli

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const hostsPath = "/v1/hosts"

func hostPath(id string) string { return hostsPath + "/" + url.PathEscape(id) }

func hostCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "host", Aliases: []string{"hosts"}, Short: "Machines that run environments", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(hostListCmd(a), hostGetCmd(a), hostRegisterCmd(a), hostRemoveCmd(a),
		hostActionCmd(a, "cordon", "Place no new environments on a host"),
		hostActionCmd(a, "uncordon", "Place environments on a host again"))
	return cmd
}

func hostListCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List hosts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			merged := pageMerger{key: "hosts"}
			q := url.Values{"limit": {"200"}}
			var rows [][]string
			for {
				var page hostList
				raw, err := a.fetch(cmd.Context(), call{method: http.MethodGet, path: hostsPath, query: q}, &page)
				if err != nil {
					return err
				}
				if err := merged.add(raw); err != nil {
					return err
				}
				for _, h := range page.Hosts {
					rows = append(rows, hostRow(h))
				}
				next := page.NextCursor
				if next == "" {
					break
				}
				q.Set("cursor", next)
			}
			switch {
			case format == "json":
				raw, err := merged.bytes()
				if err != nil {
					return err
				}
				return a.printJSON(raw)
			case format == "name" || a.quiet:
				for _, r := range rows {
					fmt.Fprintln(a.Streams.Out, r[0])
				}
				return nil
			}
			return table(a.Streams.Out, []string{"ID", "STATE", "SEEN", "BACKEND", "ACCEL", "VMS", "CPUS", "RAM MB", "DISK GB"}, rows)
		},
	}
}

func hostRow(h host) []string {
	of := func(used, total int) string { return fmt.Sprintf("%d/%d", used, total) }
	seen := "never"
	if !h.LastSeen.IsZero() {
		seen = age(time.Now(), h.LastSeen) + " ago"
	}
	if h.Reachable != nil && !*h.Reachable {
		seen = "unreachable, " + seen
	}
	return []string{
		h.ID, h.State, seen, dash(h.Backend), dash(h.Accelerator),
		of(h.Allocated.VMCount, h.Capacity.VMCount), of(h.Allocated.CPUs, h.Capacity.CPUs),
		of(h.Allocated.RAMMB, h.Capacity.RAMMB), of(h.Allocated.StorageGB, h.Capacity.StorageGB),
	}
}

func hostGetCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show one host", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			var h host
			raw, err := a.fetch(cmd.Context(), call{method: http.MethodGet, path: hostPath(args[0])}, &h)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.printJSON(raw)
			}
			return printHost(a, h)
		},
	}
}

func printHost(a *app, h host) error {
	r := hostRow(h)
	lines := [][2]string{
		{"id", h.ID}, {"url", h.URL}, {"state", h.State}, {"seen", r[2]}, {"backend", r[3]}, {"accel", r[4]},
		{"version", dash(h.Version)}, {"vms", r[5]}, {"cpus", r[6]}, {"ram", r[7] + " MB"}, {"disk", r[8] + " GB"},
	}
	labels := h.Labels
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		lines = append(lines, [2]string{"label", k + "=" + labels[k]})
	}
	for _, m := range h.Missing {
		lines = append(lines, [2]string{"missing", m})
	}
	for _, w := range h.Warnings {
		lines = append(lines, [2]string{"warning", w})
	}
	if why := h.UnreachableReason; why != "" {
		lines = append(lines, [2]string{"unreachable", why})
	}
	for _, l := range lines {
		if _, err := fmt.Fprintf(a.Streams.Out, "%-9s %s\n", l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}

type registerFlags struct {
	url, region, token, tokenFile, cert, backend, arch string
	cpus, ramMB, storageGB, maxVMs, gpus               int
	gpuKind                                            string
	migProfiles, labels                                []string
}

func (f *registerFlags) body(id string) (map[string]any, error) {
	if f.url == "" {
		return nil, usagef("--url is needed: the address of the host agent, as 'fuse hostd' prints it")
	}
	token := f.token
	if f.tokenFile != "" {
		data, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, usagef("%w", err)
		}
		token = strings.TrimSpace(string(data))
	}
	capacity := map[string]any{}
	for k, v := range map[string]int{"cpus": f.cpus, "ram_mb": f.ramMB, "storage_gb": f.storageGB, "vm_count": f.maxVMs, "gpus": f.gpus} {
		if v != 0 {
			capacity[k] = v
		}
	}
	for k, v := range map[string]string{"arch": f.arch, "gpu_kind": f.gpuKind} {
		if v != "" {
			capacity[k] = v
		}
	}
	mig, err := pairs("--mig-profile", f.migProfiles, nil)
	if err != nil {
		return nil, err
	}
	if len(mig) > 0 {
		counts := map[string]int{}
		for k, v := range mig {
			n, err := strconv.Atoi(v)
			if err != nil {
				return nil, usagef("--mig-profile %s=%s: the count is not a number", k, v)
			}
			counts[k] = n
		}
		capacity["mig_profiles"] = counts
	}
	labels, err := pairs("--label", f.labels, nil)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"id": id, "url": f.url, "capacity": capacity}
	for k, v := range map[string]string{"token": token, "region": f.region, "backend": f.backend, "cert_sha256": f.cert} {
		if v != "" {
			body[k] = v
		}
	}
	if len(labels) > 0 {
		body["labels"] = labels
	}
	return body, nil
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
			body, err := f.body(args[0])
			if err != nil {
				return err
			}
			var h host
			raw, err := a.fetch(cmd.Context(), call{method: http.MethodPost, path: hostsPath, body: body}, &h)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.printJSON(raw)
			}
			for _, w := range h.Warnings {
				a.progressf("warning: %s", w)
			}
			fmt.Fprintln(a.Streams.Out, h.ID)
			return nil
		},
	}
	s := cmd.Flags()
	s.StringVar(&f.url, "url", "", "address of the host agent, `https://HOST:PORT`")
	s.StringVar(&f.token, "token", "", "the host agent's token (prefer --token-file)")
	s.StringVar(&f.tokenFile, "token-file", "", "`file` that holds the host agent's token")
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
	cmd := &cobra.Command{
		Use: "rm ID", Aliases: []string{"remove"}, Short: "Forget a host that runs no environments", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := a.fetch(cmd.Context(), call{method: http.MethodDelete, path: hostPath(args[0])}, nil); err != nil {
				return err
			}
			fmt.Fprintln(a.Streams.Out, args[0])
			return nil
		},
	}
	cmd.Flags().Bool("yes", true, "accepted for the public command line")
	return cmd
}

func hostActionCmd(a *app, action, short string) *cobra.Command {
	return &cobra.Command{
		Use: action + " ID", Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := a.fetch(cmd.Context(), call{method: http.MethodPost, path: hostPath(args[0]), query: url.Values{"action": {action}}}, nil)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.Streams.Out, args[0])
			return nil
		},
	}
}
