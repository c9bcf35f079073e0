// Package usage is the verb that shows what environments take of their hosts.
package usage

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// orders are the columns to sort by, the largest first.
var orders = map[string]func(u gen.Usage) float64{
	"cpu":    func(u gen.Usage) float64 { return value(u.CPUs) },
	"memory": func(u gen.Usage) float64 { return float64(u.MemoryBytes) },
	"disk":   func(u gen.Usage) float64 { return float64(u.DiskBytes) },
	"net":    func(u gen.Usage) float64 { return value(u.NetInBps) + value(u.NetOutBps) },
}

// Command is "fuse top".
func Command(t kit.Tools) *cobra.Command {
	var by string
	var every time.Duration
	cmd := &cobra.Command{
		Use: "top [ID]", Short: "Show what environments take: processor, memory, disk, network",
		Long: "top shows running environments, those that take most first. Rates are averages since\n" +
			"the look before, at most 15 s ago; `-` where there was none yet.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			order, ok := orders[by]
			if !ok {
				return t.Usage("--sort %q: there is cpu, memory, disk, net", by)
			}
			if every < 0 || every > 0 && every < time.Second {
				return t.Usage("--every %s: 1s or more", every)
			}
			api, err := t.Server()
			if err != nil {
				return err
			}
			for {
				if err := show(cmd.Context(), t, api, args, order); err != nil || every == 0 {
					return err
				}
				timer := time.NewTimer(every)
				select {
				case <-timer.C:
				case <-cmd.Context().Done():
					timer.Stop()
					return nil
				}
			}
		},
	}
	cmd.Flags().StringVar(&by, "sort", "cpu", "largest first by `column`: cpu, memory, disk or net")
	cmd.Flags().DurationVar(&every, "every", 0, "look again and again until interrupted (0: once)")
	return cmd
}

func show(ctx context.Context, t kit.Tools, api *client.API, args []string, order func(gen.Usage) float64) error {
	format, err := t.ListFormat()
	if err != nil {
		return err
	}
	var list gen.UsageList
	meter := client.Metering{API: api}
	if len(args) == 1 {
		var one gen.Usage
		if one, err = meter.Of(ctx, args[0]); err == nil && format == "json" {
			return t.PrintJSON(one)
		}
		list.Usage = []gen.Usage{one}
	} else {
		list, err = meter.List(ctx)
	}
	if err != nil {
		return err
	}
	slices.SortStableFunc(list.Usage, func(a, b gen.Usage) int { return cmp.Compare(order(b), order(a)) })
	for _, host := range list.Unseen {
		t.Progress("host %s could not be asked, or cannot say", t.Cell(host))
	}
	if format == "json" {
		return t.PrintJSON(list)
	}
	return table(t, t.Out, list.Usage, format == "name")
}

func table(t kit.Tools, w io.Writer, list []gen.Usage, ids bool) error {
	rows := make([][]string, 0, len(list))
	for _, u := range list {
		if ids {
			if _, err := fmt.Fprintln(w, t.Cell(u.ID)); err != nil {
				return err
			}
			continue
		}
		cpu := "-"
		if u.CPUs != nil {
			cpu = fmt.Sprintf("%.2f", *u.CPUs)
		}
		rows = append(rows, []string{
			t.Cell(u.ID), cpu, fmt.Sprintf("%.0f s", u.CPUSeconds), kit.Bytes(float64(u.MemoryBytes)), kit.Bytes(float64(u.DiskBytes)),
			rate(u.DiskReadBps), rate(u.DiskWriteBps), rate(u.NetInBps), rate(u.NetOutBps), t.Cell(u.HostID),
		})
	}
	if ids {
		return nil
	}
	return t.Table(w, []string{"ID", "CPU", "CPU TIME", "MEMORY", "DISK", "READ/S", "WRITE/S", "NET IN/S", "NET OUT/S", "HOST"}, rows)
}

func rate(n *float64) string {
	if n == nil {
		return "-"
	}
	return kit.Bytes(*n)
}

func value(n *float64) float64 {
	if n == nil {
		return 0
	}
	return *n
}
