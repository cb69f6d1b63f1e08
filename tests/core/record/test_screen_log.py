from loguru import logger

from ajet.core.record.run_log import begin_screen_log, run_log


def test_the_screen_gets_warnings_and_the_run_folder_everything(tmp_path, capsys):
    begin_screen_log(verbose=False)
    with run_log(tmp_path / "run.log"):
        logger.debug("how programs are confined")
        logger.warning("{braces} stay as they are")
    logger.warning("after the run")
    assert capsys.readouterr().err == "warning: {braces} stay as they are\nwarning: after the run\n"
    first, second = (tmp_path / "run.log").read_text().splitlines()
    assert first.endswith("DEBUG   how programs are confined")
    assert second.endswith("WARNING {braces} stay as they are")


def test_verbose_shows_everything(capsys):
    begin_screen_log(verbose=True)
    logger.debug("how programs are confined")
    assert capsys.readouterr().err == "debug: how programs are confined\n"
