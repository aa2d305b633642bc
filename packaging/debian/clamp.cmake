# CPack runs this before it packs: files get the time of SOURCE_DATE_EPOCH, so that two builds give the same bytes.
execute_process(COMMAND find ${CPACK_TEMPORARY_DIRECTORY} -exec touch -h -d @$ENV{SOURCE_DATE_EPOCH} {} +
                COMMAND_ERROR_IS_FATAL ANY)
