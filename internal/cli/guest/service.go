package guest

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/gen"
)

func (a *app) service() *cobra.Command {
	cmd := &cobra.Command{Use: "service", Aliases: []string{"services"}, Short: "Services of an environment's manifest"}
	cmd.AddCommand(a.serviceList(), a.serviceLogs())
	return cmd
}

func (a *app) serviceList() *cobra.Command {
	return &cobra.Command{
		Use: "ls ID", Aliases: []string{"list"}, Short: "List services in the order of their starts", Args: cobra.ExactArgs(1), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.ListFormat()
			if err != nil {
				return err
			}
			g, err := a.guest()
			if err != nil {
				return err
			}
			list, err := g.Services(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.PrintJSON(list)
			case "name":
				for _, s := range list.Services {
					fmt.Fprintln(a.Out, a.Cell(s.Name))
				}
				return nil
			}
			var rows [][]string
			for _, s := range list.Services {
				rows = append(rows, []string{
					a.Cell(s.Name), a.Cell(serviceState(s)), a.Cell(s.Health), fmt.Sprint(s.Restarts), a.Age(time.Now(), s.Since), a.Cell(s.Message),
				})
			}
			return a.Table(a.Out, []string{"NAME", "STATE", "HEALTH", "RESTARTS", "SINCE", "MESSAGE"}, rows)
		},
	}
}

func serviceState(s gen.EnvironmentService) string {
	if s.ExitCode != nil && s.State != "running" {
		return fmt.Sprintf("%s (%d)", s.State, *s.ExitCode)
	}
	return s.State
}

func (a *app) serviceLogs() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "logs ID SERVICE", Short: "Print the output of a service's last run", Args: cobra.ExactArgs(2), ValidArgsFunction: a.Environments(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := a.guest()
			if err != nil {
				return err
			}
			list, err := g.Services(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, s := range list.Services {
				switch {
				case s.Name != args[1]:
				case s.Process == "":
					return fmt.Errorf("service %s has not run yet: %s", s.Name, s.Message)
				default:
					return a.printOutput(cmd.Context(), g, args[0], s.Process, follow)
				}
			}
			return fmt.Errorf("environment %s has no service %q", args[0], args[1])
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run ends")
	return cmd
}
