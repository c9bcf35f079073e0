// Package ports holds the verbs of published and forwarded ports.
package ports

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

// Commands are port and port-forward.
func Commands(t kit.Tools) []*cobra.Command {
	return []*cobra.Command{port(t), forward(t)}
}

func port(t kit.Tools) *cobra.Command {
	return &cobra.Command{
		Use: "port ID [PORT]", Short: "Show where the ports of an environment are published",
		Long: "port lists what is published. With PORT, a number such as 8080 or 53/udp, or a name,\n" +
			"it prints that one's address alone.",
		Args: cobra.RangeArgs(1, 2), ValidArgsFunction: t.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := t.ListFormat()
			if err != nil {
				return err
			}
			api, err := t.Server()
			if err != nil {
				return err
			}
			env, err := api.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			list := env.Endpoints
			if len(args) == 2 {
				if list = named(list, args[1]); len(list) == 0 {
					return fmt.Errorf("environment %s does not publish %s", t.Cell(env.ID), t.Cell(args[1]))
				}
			}
			switch {
			case format == "json":
				if list == nil {
					list = []gen.Endpoint{}
				}
				return t.PrintJSON(list)
			case format == "name" || len(args) == 2:
				for _, e := range list {
					fmt.Fprintln(t.Out, t.Cell(e.URL))
				}
				return nil
			}
			var rows [][]string
			for _, e := range list {
				rows = append(rows, []string{t.Cell(e.As), number(e), t.Cell(e.URL)})
			}
			return t.Table(t.Out, []string{"NAME", "PORT", "ADDRESS"}, rows)
		},
	}
}

func number(e gen.Endpoint) string {
	if e.Protocol == "udp" {
		return strconv.Itoa(e.Port) + "/udp"
	}
	return strconv.Itoa(e.Port) + "/tcp"
}

// named are the endpoints that text means; a number alone means tcp if there is
// such a port.
func named(list []gen.Endpoint, text string) []gen.Endpoint {
	for _, match := range []func(gen.Endpoint) bool{
		func(e gen.Endpoint) bool { return e.As == text },
		func(e gen.Endpoint) bool { return number(e) == text || number(e) == text+"/tcp" },
		func(e gen.Endpoint) bool { return strconv.Itoa(e.Port) == text },
	} {
		for _, e := range list {
			if match(e) {
				return []gen.Endpoint{e}
			}
		}
	}
	return nil
}
